from __future__ import annotations

import asyncio
import gc
import sys
import threading
from functools import partial
from typing import Any

import pytest

from tests.fakes import FakeRunner, Gate, Script, build_fake_core, ids_of, letters, says
from tinyllm import (
    ConfigError,
    ContextLengthError,
    Engine,
    EngineClosedError,
    EngineDeadError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestFailedError,
    RequestTimeoutError,
    SamplingParams,
)

FIVE = SamplingParams(max_tokens=5)


def make_engine(script: Script = letters, *, runner: FakeRunner | None = None, **options: Any) -> Engine:
    build = partial(build_fake_core, script=script, runner=runner)
    return Engine(_build=build, **{"check_integrity": True, **options})


def test_one_prompt_gives_one_result() -> None:
    with make_engine(says("hello")) as engine:
        assert engine.generate("x").text == "hello"
        assert engine.generate(ids_of("x")).text == "hello"
        assert engine.info.model == "fake"


def test_a_list_gives_results_in_order() -> None:
    prompts = [f"prompt {number}" for number in range(50)]
    with make_engine(max_num_seqs=3, max_waiting_requests=2) as engine:
        results = engine.generate(prompts, FIVE, progress=False)
        assert [result.text for result in results] == [engine.generate(p, FIVE).text for p in prompts]
        assert [result.prompt_token_ids for result in results] == [tuple(ids_of(p)) for p in prompts]
        assert [r.text for r in engine.generate([ids_of(p) for p in prompts], FIVE, progress=False)] == [
            r.text for r in results
        ]
        nothing: list[str] = []
        assert len(engine.generate(nothing, FIVE)) == 0


def test_the_progress_bar_is_for_terminals_and_can_be_switched_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with make_engine() as engine:
        engine.generate(["a", "b"], FIVE)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        engine.generate(["a", "b"], FIVE, progress=False)
        engine.generate("a", FIVE)
        assert capsys.readouterr().err == ""
        engine.generate(["a", "b"], FIVE)
        assert "2/2" in capsys.readouterr().err


def test_chat_with_one_conversation_and_with_many() -> None:
    conversation = [{"role": "user", "content": "hi"}]
    with make_engine(says("hello")) as engine:
        assert engine.chat(conversation).text == "hello"
        results = engine.chat([conversation, conversation], progress=False)
        assert [result.text for result in results] == ["hello", "hello"]
        assert results[0].prompt_token_ids == tuple(ids_of("user: hi\nassistant:"))


def test_it_works_inside_a_running_event_loop() -> None:
    async def cell() -> str:
        with make_engine(says("hello")) as engine:
            return engine.generate("x").text

    assert asyncio.run(cell()) == "hello"


def test_everything_is_checked_before_anything_runs() -> None:
    runner = FakeRunner()
    with make_engine(runner=runner, max_model_len=50) as engine:
        with pytest.raises(ContextLengthError):
            engine.generate(["fine", "x" * 100], FIVE, progress=False)
        with pytest.raises(InvalidRequestError):
            engine.generate(["fine", ""], FIVE, progress=False)
        assert runner.steps == []


def test_a_prompt_that_fails_ends_the_batch_and_not_the_engine() -> None:
    def script(request: Any) -> int:
        if request.prompt_token_ids == ids_of("bad"):
            raise_later.append(request.request_id)
            runner.faults[request.request_id] = ValueError("hook")
        return letters(request)

    raise_later: list[str] = []
    runner = FakeRunner(script)
    with make_engine(runner=runner) as engine:
        with pytest.raises(RequestFailedError):
            engine.generate(["good", "bad", "good"], FIVE, progress=False)
        assert raise_later
        assert engine.generate("good", FIVE).token_ids
        assert "num_requests_running" in engine.metrics_text()


def test_a_timeout_bounds_the_call() -> None:
    gate = Gate()
    with make_engine(runner=FakeRunner(gate=gate)) as engine:
        gate.open()
        with pytest.raises(RequestTimeoutError):
            engine.generate("x", SamplingParams(max_tokens=1900), timeout=0.01)


def test_an_interrupt_aborts_what_is_running(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = FakeRunner()
    with make_engine(runner=runner) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_next_deliveries", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                engine.generate(["a", "b"], SamplingParams(max_tokens=1900), progress=False)
        assert len(engine.generate("c", FIVE).token_ids) == 5
        assert len(runner.steps) < 1000


def _interrupt() -> Any:
    raise KeyboardInterrupt


def test_a_dead_engine_says_so() -> None:
    runner = FakeRunner()
    with make_engine(runner=runner) as engine:
        runner.fail = RuntimeError("crash")
        for _ in range(2):
            with pytest.raises(EngineDeadError) as caught:
                engine.generate("x", FIVE)
            assert caught.value.__cause__ is runner.fail


def test_a_closed_engine_says_so() -> None:
    engine = make_engine()
    engine.close()
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.generate("x")
    with pytest.raises(EngineClosedError):
        engine.reset_prefix_cache()


def test_wrong_options_and_models_raise_at_once() -> None:
    with pytest.raises(ConfigError):
        Engine(max_seqs=1)

    def build(config: object) -> Any:
        raise ModelNotFoundError("none")

    with pytest.raises(ModelNotFoundError):
        Engine(_build=build)


def test_calls_from_several_threads_wait_for_one_another() -> None:
    with make_engine() as engine:
        texts: list[str] = []
        threads = [
            threading.Thread(target=lambda: texts.append(engine.generate("x", FIVE).text)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert texts == [engine.generate("x", FIVE).text] * 4


def test_a_forgotten_engine_ends_its_thread() -> None:
    engine = make_engine()
    executor = engine._executor
    del engine
    gc.collect()
    assert executor.join(20)
