from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.engine.conftest import MakeEngine
from tests.engine.support import metric, num_used_blocks, read_all, wait_idle, wait_stalled
from tests.fakes import FakeRunner, FakeTemplates, Gate, build_fake_core, ids_of, letters, says
from tinyllm import (
    AsyncEngine,
    ChatTemplateError,
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    EngineConfig,
    EngineDeadError,
    EngineOverloadedError,
    EngineStatus,
    FinishReason,
    InvalidRequestError,
    ModelNotFoundError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
    SamplingParams,
    SlowConsumerError,
    TokenStream,
)
from tinyllm.engine.async_engine import MAX_WAITING_TEXTS

pytestmark = pytest.mark.anyio

FIVE = SamplingParams(max_tokens=5)
LONG = SamplingParams(max_tokens=1000)


# ------------------------------------------------------------------ generating


async def test_pieces_joined_are_what_awaiting_gives(make_engine: MakeEngine) -> None:
    async with make_engine(says("a🦙漢 b")) as engine:
        text = "".join([piece.text async for piece in engine.generate("x")])
        result = await engine.generate("x")
        assert text == result.text == "a🦙漢 b"
        assert result.finish_reason is FinishReason.STOP
        assert result.prompt_token_ids == (120,)
        assert result.usage.prompt_tokens == 1
        assert result.usage.completion_tokens == len("a🦙漢 b".encode()) + 1
        assert result.params.temperature == 0.0
        assert result.metrics.time_to_first_token is not None


async def test_token_ids_are_a_prompt_too(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        assert (await engine.generate(ids_of("hi"), FIVE)).text == (await engine.generate("hi", FIVE)).text


async def test_many_streams_at_once_are_each_what_they_are_alone(make_engine: MakeEngine) -> None:
    prompts = [f"prompt {number}" for number in range(8)]
    async with make_engine(max_num_seqs=4, max_num_batched_tokens=16, stream_buffer_size=2) as engine:
        alone = [(await engine.generate(prompt, SamplingParams(max_tokens=20))).text for prompt in prompts]
        together: dict[int, str] = {}

        async def read(number: int) -> None:
            stream = engine.generate(prompts[number], SamplingParams(max_tokens=20))
            together[number] = ""
            async for piece in stream:
                together[number] += piece.text
                if number == 3:
                    await anyio.sleep(0.002)  # one that is slow: the others do not wait, it misses nothing

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(8):
                    tasks.start_soon(read, number)
        assert [together[number] for number in range(8)] == alone


def test_streams_are_awaitables_for_asyncio(make_engine: MakeEngine) -> None:
    async def main() -> None:
        async with make_engine() as engine:
            results = await asyncio.gather(*(engine.generate(text, FIVE) for text in ("a", "b")))
            assert [len(result.token_ids) for result in results] == [5, 5]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(engine.generate("x", LONG), 0.005)
            await wait_idle(engine)

    asyncio.run(main())


async def test_answers_interleave_by_index(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        result = await engine.generate("x", SamplingParams(max_tokens=4, n=3))
        assert [choice.index for choice in result.choices] == [0, 1, 2]
        assert {len(choice.token_ids) for choice in result.choices} == {4}
        assert result.usage.completion_tokens == 12


async def test_prompt_logprobs_are_on_stream_and_result(make_engine: MakeEngine) -> None:
    async with make_engine(max_num_batched_tokens=2) as engine:
        params = SamplingParams(max_tokens=2, prompt_logprobs=0)
        stream = engine.generate("hello", params)
        await anext(stream)
        assert stream.prompt_logprobs is not None
        stream.close()
        result = await engine.generate("hello", params)
        assert result.prompt_logprobs is not None
        assert [e and e.token_id for e in result.prompt_logprobs] == [None, *ids_of("ello")]


async def test_a_long_prompt_is_encoded_in_the_background(make_engine: MakeEngine) -> None:
    async with make_engine(max_model_len=8192, num_blocks=1024) as engine:
        text = "word " * 1000
        stream = engine.generate(text, FIVE)
        assert stream.prompt_token_ids == ()
        assert engine.num_requests == 1
        result = await stream
        assert result.prompt_token_ids == tuple(ids_of(text))


@pytest.mark.parametrize("prompt", ["a", [97]])
async def test_many_bad_words_are_encoded_in_the_background(
    make_engine: MakeEngine, prompt: str | list[int]
) -> None:
    async with make_engine() as engine:
        words = [f"{number:0200}" for number in range(40)]
        stream = engine.generate(prompt, SamplingParams(max_tokens=3, bad_words=words))
        assert stream.prompt_token_ids == ()
        assert (await stream).prompt_token_ids == (97,)
        assert engine.generate(prompt, SamplingParams(max_tokens=3, bad_words=words[:9])).prompt_token_ids


async def test_faults_found_in_the_background_are_raised_by_the_stream(make_engine: MakeEngine) -> None:
    async with make_engine(max_model_len=100) as engine:
        with pytest.raises(ContextLengthError):
            await anext(engine.generate("x" * 10_000, FIVE))
        with pytest.raises(InvalidRequestError, match="surrogate"):
            await engine.generate("\ud800" * 10_000, FIVE)
        assert engine.num_requests == 0


async def test_encoding_in_the_background_does_not_hold_up_the_loop(make_engine: MakeEngine) -> None:
    entered, leave = threading.Event(), threading.Event()

    class SlowTemplates(FakeTemplates):
        def render(self, messages: Any, mark: Any = None, /, *, tools: Any = None, **kwargs: Any) -> str:
            entered.set()
            assert leave.wait(20)
            return super().render(messages, mark, tools=tools, **kwargs)

    async with make_engine(templates=SlowTemplates()) as engine:
        slow = engine.chat([{"role": "user", "content": "x"}], FIVE)
        await anyio.to_thread.run_sync(entered.wait)
        assert (await engine.generate("quick", FIVE)).finish_reason is FinishReason.LENGTH
        assert engine.abort(slow.request_id)
        assert engine.num_requests == 0
        leave.set()
        with pytest.raises(RequestAbortedError):
            await slow


async def test_a_stream_dropped_while_it_is_encoded_frees_its_place(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        engine.chat([{"role": "user", "content": "x"}], LONG)
        gc.collect()
        await wait_idle(engine)
        stream = engine.chat([{"role": "user", "content": "x"}], LONG)
        stream.close()
        await wait_idle(engine)
        assert metric(engine, "requests_cancelled_total", phase="queued") == 2


class HeldTemplates(FakeTemplates):
    """Renders what is not short when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.leave = threading.Event(), threading.Event()
        self.rendered: list[str] = []

    def render(self, messages: Any, mark: Any = None, /, *, tools: Any = None, **kwargs: Any) -> str:
        self.rendered.append(messages[0]["content"])
        if messages[0]["content"] != "short":
            self.entered.set()
            assert self.leave.wait(20)
        return super().render(messages, mark, tools=tools, **kwargs)


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize("name", ["timeout", "queue_timeout"])
async def test_a_timeout_holds_while_the_prompt_is_encoded(make_engine: MakeEngine, name: str) -> None:
    templates = HeldTemplates()
    limit: dict[str, Any] = {name: 0.05}
    async with make_engine(templates=templates, max_num_seqs=1, max_waiting_requests=1) as engine:
        first = engine.chat(user("held"), FIVE, **limit)
        await anyio.to_thread.run_sync(templates.entered.wait)
        second = engine.chat(user("behind it"), FIVE, **limit)
        for stream in (first, second):
            with anyio.fail_after(10), pytest.raises(RequestTimeoutError, match=rf"{name}, 0\.05 s"):
                await stream
        assert engine.num_requests == engine._table.admission.answers == 0
        templates.leave.set()
        assert (await engine.chat(user("short"), FIVE)).token_ids
        assert templates.rendered == ["held", "short"]  # what nobody waits for is not rendered


async def test_the_clock_of_encoding_stops_with_it(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks: list[str] = []

    def call_later(seconds: float, *call: object) -> Any:
        clocks.append("started")
        return lambda: clocks.append("stopped")

    gate = Gate()
    async with make_engine(runner=FakeRunner(gate=gate), max_model_len=8192, num_blocks=1024) as engine:
        monkeypatch.setattr(engine._bridge, "call_later", call_later)
        stream = engine.generate("x" * 5000, FIVE, queue_timeout=100)
        await anyio.to_thread.run_sync(gate.wait_entered)
        assert clocks == ["started", "stopped"]
        gate.open()
        assert len((await stream).token_ids) == 5
        clocks.clear()
        stream = engine.generate("x" * 5000, FIVE, timeout=1e300)
        assert engine.abort(stream.request_id)
        assert clocks == ["started", "stopped"]


@pytest.mark.parametrize(
    "given",
    [
        {"messages": user("x" * 100_000)},
        {"messages": user("x"), "tools": [{"name": "x" * 100_000}]},
        {"messages": user("x"), "chat_template_kwargs": {"think": "x" * 100_000}},
    ],
    ids=["messages", "tools", "variables"],
)
async def test_a_long_text_does_not_hold_up_short_ones(
    make_engine: MakeEngine, given: dict[str, Any]
) -> None:
    templates = HeldTemplates()
    async with make_engine(templates=templates) as engine:
        long = engine.chat(**given, params=FIVE)
        await anyio.to_thread.run_sync(templates.entered.wait)
        with anyio.fail_after(10):
            assert (await engine.chat(user("short"), FIVE)).token_ids
            assert (await engine.render_chat(user("short"))).text
            assert await engine.encode("x" * 5000)
            assert await engine.decode([65] * 5000)
        assert not long.has_ended
        templates.leave.set()
        with pytest.raises(ContextLengthError):
            await long


# ------------------------------------------------------------------ chat and text


async def test_chat_renders_with_tools_and_arguments(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        messages = [{"role": "user", "content": "hi"}]
        tools = [{"name": "clock"}]
        rendered = await engine.render_chat(messages, tools=tools, chat_template_kwargs={"think": False})
        assert rendered.text == "user: hi\ntool: clock\nthink=False\nassistant:"
        result = await engine.chat(messages, FIVE, tools=tools, chat_template_kwargs={"think": False})
        assert result.prompt_token_ids == rendered.token_ids == tuple(ids_of(rendered.text))


@pytest.mark.parametrize("fault", [ChatTemplateError("refused", param="messages"), BaseException("panic")])
async def test_a_template_that_fails_fails_its_request(make_engine: MakeEngine, fault: BaseException) -> None:
    templates = FakeTemplates()
    async with make_engine(templates=templates) as engine:
        templates.fault = fault
        expected = ChatTemplateError if isinstance(fault, ChatTemplateError) else RequestFailedError
        with pytest.raises(expected):
            await engine.chat([], FIVE)
        with pytest.raises(expected):
            await engine.render_chat([])
        templates.fault = None
        assert (await engine.chat([], FIVE)).text


async def test_encode_and_decode(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        for text in ("hé", "ab" * 10_000):
            assert await engine.encode(text) == ids_of(text)
            assert await engine.decode(ids_of(text)) == text
        assert await engine.encode("a", add_special_tokens=False) == ids_of("a")


async def test_texts_that_wait_are_bounded_and_those_nobody_wants_are_left_out(
    make_engine: MakeEngine,
) -> None:
    go, rendered = threading.Event(), []

    class Slow(FakeTemplates):
        def render(self, messages: Any, mark: Any = None, /, *, tools: Any = None, **kwargs: Any) -> str:
            go.wait(10)
            rendered.append(messages)
            return super().render(messages, mark, tools=tools, **kwargs)

    async with make_engine(templates=Slow()) as engine:
        with anyio.CancelScope() as impatient:
            async with anyio.create_task_group() as group:
                for _ in range(MAX_WAITING_TEXTS):
                    group.start_soon(engine.render_chat, [{"role": "user", "content": "x"}])
                await anyio.wait_all_tasks_blocked()
                for ask in (
                    engine.encode("x" * 10_000),
                    engine.decode([65] * 10_000),
                    engine.render_chat([]),
                ):
                    with pytest.raises(EngineOverloadedError, match="32 texts"):
                        await ask
                assert await engine.encode("short") == ids_of("short")
                impatient.cancel()
        go.set()
        with anyio.fail_after(5):
            while True:
                try:
                    assert await engine.encode("x" * 10_000)
                    break
                except EngineOverloadedError:
                    await anyio.sleep(0.001)
        assert len(rendered) <= 1


async def test_the_end_is_told_at_once(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    engine = make_engine(runner=runner)
    with pytest.raises(EngineClosedError, match="not started"):
        await engine.wait_ended()
    async with engine:
        with anyio.move_on_after(0.01):
            await engine.wait_ended()
        runner.fail = RuntimeError("broken")
        stream = engine.generate("x")
        assert isinstance(await engine.wait_ended(), RuntimeError)
        assert engine.status is EngineStatus.DEAD
        with pytest.raises(EngineDeadError):
            await stream
    other = make_engine()
    async with other:
        pass
    assert await other.wait_ended() is None
    unused = make_engine()
    await unused.aclose()
    assert await unused.wait_ended() is None


# ------------------------------------------------------------------ admission


async def test_admission_is_exact(make_engine: MakeEngine) -> None:
    gate = Gate()
    async with make_engine(runner=FakeRunner(gate=gate), max_num_seqs=2, max_waiting_requests=3) as engine:
        streams = [engine.generate("x", FIVE) for _ in range(3)]
        streams.append(engine.generate("x", SamplingParams(n=2, max_tokens=5)))
        with pytest.raises(EngineOverloadedError, match="at most 5") as caught:
            engine.generate("x", FIVE)
        assert caught.value.retry_after > 0
        gate.open()
        for stream in streams:
            await stream
        assert engine.num_requests == 0
        assert [await engine.generate("x", FIVE) for _ in range(2)]


async def test_waiting_tokens_are_bounded_until_they_run(make_engine: MakeEngine) -> None:
    gate = Gate()
    async with make_engine(runner=FakeRunner(gate=gate), max_num_seqs=1, max_waiting_tokens=10) as engine:
        with pytest.raises(ContextLengthError, match="max_waiting_tokens"):
            engine.generate("x" * 11, FIVE)
        first = engine.generate("x" * 10, FIVE)
        with pytest.raises(EngineOverloadedError, match="max_waiting_tokens"):
            engine.generate("x", FIVE)
        gate.allow()
        await anext(first)  # it runs
        second = engine.generate("x" * 10, FIVE)
        with pytest.raises(EngineOverloadedError):
            engine.generate("x", FIVE)
        gate.open()
        first.close()
        await second


async def test_a_refused_request_leaves_nothing(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        for arguments in ({"prompt": ""}, {"prompt": [-1]}, {"prompt": "x" * 3000}):
            with pytest.raises(InvalidRequestError):
                engine.generate(**arguments)
        with pytest.raises(InvalidRequestError):
            engine.generate("x", SamplingParams(logit_bias={9999: 1.0}))
        with pytest.raises(InvalidRequestError):
            engine.generate("x", timeout=-1)
        assert engine.num_requests == 0
        assert engine._table.admission.answers == engine._table.admission.waiting_tokens == 0


async def test_a_request_id_in_use_is_refused_and_its_owner_unharmed(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        stream = engine.generate("x", FIVE, request_id="mine")
        with pytest.raises(InvalidRequestError) as caught:
            engine.generate("x", FIVE, request_id="mine")
        assert caught.value.param == "request_id"
        gc.collect()
        assert len((await stream).token_ids) == 5
        assert (await engine.generate("x", FIVE, request_id="mine")).request_id == "mine"


# ------------------------------------------------------------------ ending early


async def test_abort_ends_the_stream_with_its_error(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        stream = engine.generate("x", LONG)
        await anext(stream)
        assert engine.abort(stream.request_id)
        with pytest.raises(RequestAbortedError):
            await read_all(stream)
        assert not engine.abort(stream.request_id)
        assert not engine.abort("nobody")


async def test_break_close_garbage_and_cancel_free_everything(make_engine: MakeEngine) -> None:
    async with make_engine(stream_buffer_size=4) as engine:
        async for _ in engine.generate("break", LONG):
            break
        closed = engine.generate("close", LONG)
        await anext(closed)
        await closed.aclose()
        async with aclosing(engine.generate("aclosing", LONG)) as stream:
            await anext(stream)
        engine.generate("garbage", LONG)
        with anyio.move_on_after(0.01):
            await engine.generate("cancel", LONG)
        gc.collect()
        await wait_idle(engine)
        assert await num_used_blocks(engine) == 0
        assert metric(engine, "requests_cancelled_total") == 5


async def test_cancelling_in_every_phase_frees_all_blocks(make_engine: MakeEngine) -> None:
    gate = Gate()
    runner = FakeRunner(gate=gate)
    async with make_engine(
        runner=runner, max_num_seqs=1, max_num_batched_tokens=4, stream_buffer_size=1
    ) as engine:
        prefilling = engine.generate("a prompt of several chunks", LONG)
        queued = engine.generate("queued", LONG)
        await anyio.to_thread.run_sync(gate.wait_entered)
        queued.close()
        prefilling.close()
        gate.open()
        await wait_idle(engine)
        chunks = len(runner.steps)
        assert chunks <= 2
        decoding = engine.generate("decode", LONG)
        await anext(decoding)
        decoding.close()
        stalled = engine.generate("stall", LONG)
        await wait_stalled(engine)
        stalled.close()
        await wait_idle(engine)
        assert await num_used_blocks(engine) == 0
        cancels = {
            phase: metric(engine, "requests_cancelled_total", phase=phase)
            for phase in ("queued", "prefill", "decode", "stalled")
        }
        assert (cancels["queued"], cancels["prefill"]) == (1, 1)
        assert cancels["stalled"] >= 1  # the one that decoded may have stalled again by then
        assert cancels["decode"] + cancels["stalled"] == 2


async def test_timeouts(make_engine: MakeEngine) -> None:
    gate = Gate()
    async with make_engine(runner=FakeRunner(gate=gate), max_num_seqs=1) as engine:
        running = engine.generate("x", LONG, timeout=0.05)
        queued = engine.generate("x", LONG, queue_timeout=0.01)
        gate.open()
        for stream in (queued, running):
            with pytest.raises(RequestTimeoutError):
                await read_all(stream)
        await wait_idle(engine)


async def test_a_stream_that_nobody_reads_ends_after_stall_timeout(make_engine: MakeEngine) -> None:
    async with make_engine(stream_buffer_size=2, stall_timeout=0.05) as engine:
        stream = engine.generate("x", LONG)
        await wait_idle(engine)
        assert len([await anext(stream), await anext(stream)]) == 2
        with pytest.raises(SlowConsumerError):
            await anext(stream)
        assert await num_used_blocks(engine) == 0


async def test_a_thousand_submits_cancelled_at_once(make_engine: MakeEngine) -> None:
    async with make_engine(max_waiting_requests=1000, check_integrity=False) as engine:
        streams = [engine.generate(f"prompt {number}", LONG) for number in range(1000)]
        await anext(streams[0])
        for stream in streams:
            stream.close()
        await wait_idle(engine, seconds=2)
        assert await num_used_blocks(engine) == 0
        assert engine._table.admission.answers == engine._table.admission.waiting_tokens == 0
        assert (await engine.generate("x", FIVE)).finish_reason is FinishReason.LENGTH


# ------------------------------------------------------------------ faults


async def test_a_fault_of_a_step_is_everybodys_end_and_says_so(make_engine: MakeEngine) -> None:
    gate, fault = Gate(), BaseException("the device is gone")
    runner = FakeRunner(gate=gate)
    async with make_engine(runner=runner, max_num_seqs=1) as engine:
        streams = [engine.generate("x", LONG) for _ in range(3)]
        gate.allow()
        await anext(streams[0])
        runner.fail = fault
        gate.open()
        for stream in streams:
            with pytest.raises(EngineDeadError) as caught:
                await read_all(stream)
            assert caught.value.__cause__ is fault
            assert "gone" not in str(caught.value)
        assert engine.status is EngineStatus.DEAD
        assert engine.cause is fault
        with pytest.raises(EngineDeadError):
            engine.generate("x")
        with pytest.raises(EngineDeadError):
            engine.reset_prefix_cache()
        assert engine.num_requests == 0
        assert await engine.drain()
    assert engine.status is EngineStatus.DEAD


async def test_a_fault_of_one_request_is_its_own(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    runner.faults["bad/0"] = ValueError("hook")
    async with make_engine(runner=runner) as engine:
        bad, good = engine.generate("x", FIVE, request_id="bad"), engine.generate("x", FIVE)
        with pytest.raises(RequestFailedError) as caught:
            await bad
        assert caught.value.__cause__ is runner.faults["bad/0"]
        assert (await good).finish_reason is FinishReason.LENGTH
        assert engine.status is EngineStatus.RUNNING


# ------------------------------------------------------------------ life


async def test_status_through_a_life(make_engine: MakeEngine) -> None:
    engine = make_engine()
    assert engine.status == "new"
    with pytest.raises(EngineClosedError, match="not started"):
        engine.generate("x")
    with pytest.raises(EngineClosedError):
        _ = engine.info
    assert engine.metrics_text() == ""
    await engine.start()
    assert engine.status == "running"
    assert engine.info.model == "fake"
    with pytest.raises(EngineClosedError, match="already"):
        await engine.start()
    await engine.aclose()
    await engine.aclose()
    assert engine.status is EngineStatus.CLOSED
    with pytest.raises(EngineClosedError, match="closed"):
        engine.generate("x")
    with pytest.raises(EngineClosedError, match="closed"):
        await engine.encode("x" * 10_000)
    with pytest.raises(EngineClosedError, match="closed"):
        await engine.render_chat([])


async def test_closing_an_engine_that_never_started(make_engine: MakeEngine) -> None:
    engine = make_engine()
    await engine.aclose()
    await engine.aclose()
    assert engine.status is EngineStatus.CLOSED
    assert engine.busy_seconds == 0.0
    with pytest.raises(EngineClosedError):
        await engine.start()


async def test_closing_ends_every_stream(make_engine: MakeEngine) -> None:
    gate = Gate()
    engine = make_engine(runner=FakeRunner(gate=gate), max_num_seqs=1)
    await engine.start()
    streams = [engine.generate("x", LONG) for _ in range(3)]
    encoding = engine.chat([{"role": "user", "content": "x"}], LONG)
    gate.open()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.aclose)
        for stream in [*streams, encoding]:
            with pytest.raises(RequestAbortedError):
                await read_all(stream)
    assert engine.num_requests == 0
    assert not any(thread.name.startswith("tinyllm-executor") for thread in threading.enumerate())


async def test_start_and_close_in_different_tasks(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for step in (engine.start, partial(engine.drain, 20), engine.aclose):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(step)
    assert engine.status is EngineStatus.CLOSED


async def test_drain_lets_running_requests_finish(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        stream = engine.generate("x", FIVE)
        results: list[bool] = []

        async def drain() -> None:
            results.append(await engine.drain(20))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(EngineClosedError, match="draining"):
                engine.generate("x")
            assert (await stream).finish_reason is FinishReason.LENGTH
        assert results == [True]


async def test_drain_aborts_what_is_left(make_engine: MakeEngine) -> None:
    async with make_engine(stream_buffer_size=1) as engine:
        stream = engine.generate("x", LONG)
        assert await engine.drain(0.01) is False
        assert engine.num_requests == 0
        with pytest.raises(RequestAbortedError):
            await read_all(stream)


@pytest.mark.parametrize("seconds", [float("nan"), "1", [1]])
async def test_a_drain_without_a_number_is_refused(make_engine: MakeEngine, seconds: Any) -> None:
    async with make_engine() as engine:
        with pytest.raises(ConfigError, match="timeout"):
            await engine.drain(seconds)
        assert engine.status is EngineStatus.RUNNING


@pytest.mark.parametrize("seconds", [-1, -(10**400), 0, 10**400, float("inf")])
async def test_a_drain_takes_any_number(make_engine: MakeEngine, seconds: float) -> None:
    async with make_engine() as engine:
        assert await engine.drain(seconds)
        assert engine.status is EngineStatus.DRAINING


async def test_what_is_wrong_with_the_model_is_raised_by_start() -> None:
    for fault in (ModelNotFoundError("no such model"), RuntimeError("bug")):

        def build(config: EngineConfig, fault: Exception = fault) -> Any:
            raise fault

        engine = AsyncEngine(_build=build)
        with pytest.raises((ModelNotFoundError, EngineDeadError)) as caught:
            await engine.start()
        assert fault in (caught.value, caught.value.__cause__)
        assert engine.status is EngineStatus.DEAD
        assert engine.cause is fault
        await engine.aclose()


async def test_a_start_that_is_cancelled_ends_the_thread() -> None:
    leave = threading.Event()

    def build(config: EngineConfig) -> Any:
        assert leave.wait(20)
        return build_fake_core(config)

    engine = AsyncEngine(_build=build)
    with anyio.move_on_after(0.01):
        await engine.start()
    assert engine.status is EngineStatus.CLOSED
    leave.set()
    await engine.aclose()
    assert engine._executor.join(20)


async def test_closing_does_not_wait_for_ever_for_a_step_that_hangs(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyllm.engine.lifecycle.CLOSE_TIMEOUT", 0.05)
    gate = Gate()
    engine = make_engine(runner=FakeRunner(gate=gate))
    await engine.start()
    stream = engine.generate("x", LONG)
    await anyio.to_thread.run_sync(gate.wait_entered)
    assert engine.busy_seconds > 0
    await engine.aclose()
    with pytest.raises(RequestAbortedError):
        await stream
    gate.open()
    assert await anyio.to_thread.run_sync(engine._executor.join, 20)
    assert engine.busy_seconds == 0


async def test_what_can_never_fit_the_cache_is_refused_and_the_next_runs(make_engine: MakeEngine) -> None:
    async with make_engine(num_blocks=4, block_size=4) as engine:
        with pytest.raises(ContextLengthError, match="16 tokens"):
            engine.generate("x" * 24, FIVE)
        assert len((await engine.generate("small", FIVE)).token_ids) == 5


async def test_two_engines_in_one_process(make_engine: MakeEngine) -> None:
    async with make_engine(says("one")) as one, make_engine(says("two")) as two:
        assert ((await one.generate("x")).text, (await two.generate("x")).text) == ("one", "two")
        assert one.registry is not two.registry


async def test_a_forgotten_engine_is_stopped_and_warned_of(make_engine: MakeEngine) -> None:
    engine = make_engine()
    await engine.start()
    executor = engine._executor
    with pytest.warns(ResourceWarning, match="not closed"):  # noqa: PT031
        del engine
        gc.collect()
    assert await anyio.to_thread.run_sync(executor.join, 20)


async def test_a_stream_keeps_its_engine_alive(make_engine: MakeEngine) -> None:
    async def open_stream() -> TokenStream:
        engine = make_engine()
        await engine.start()
        return engine.generate("x", FIVE)

    stream = await open_stream()
    gc.collect()
    assert len((await stream).token_ids) == 5
    with pytest.warns(ResourceWarning, match="not closed"):  # noqa: PT031
        del stream
        gc.collect()


def test_an_engine_belongs_to_one_event_loop(make_engine: MakeEngine, anyio_backend: str) -> None:
    engine = make_engine()
    anyio.run(engine.start, backend=anyio_backend)

    async def elsewhere() -> None:
        with pytest.raises(EngineClosedError, match="another event loop"):
            engine.generate("x")
        await engine.aclose()

    anyio.run(elsewhere, backend=anyio_backend)
    assert engine.status is EngineStatus.CLOSED
    assert engine._executor.join(20)


def test_streams_of_an_event_loop_that_is_gone_end(make_engine: MakeEngine, anyio_backend: str) -> None:
    gate = Gate()
    engine = make_engine(runner=FakeRunner(gate=gate))
    streams: list[TokenStream] = []

    async def here() -> None:
        await engine.start()
        streams.append(engine.generate("x", LONG))
        await anyio.to_thread.run_sync(gate.wait_entered)

    async def elsewhere() -> None:
        with anyio.fail_after(5):
            with pytest.raises(EngineClosedError, match="another event loop"):
                await streams[0]
            gate.open()
            await engine.aclose()
            with pytest.raises(RequestAbortedError):
                await streams[0]
            assert await engine.wait_ended() is None
        assert engine.num_requests == 0

    anyio.run(here, backend=anyio_backend)
    anyio.run(elsewhere, backend=anyio_backend)


async def test_options_and_config(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="max_seqs"):
        AsyncEngine(max_seqs=5)
    with pytest.raises(ConfigError):
        AsyncEngine("some-model")  # type: ignore[arg-type]
    engine = AsyncEngine(EngineConfig(max_num_seqs=3), block_size=8)
    assert (engine.config.max_num_seqs, engine.config.block_size) == (3, 8)
    await engine.aclose()


async def test_resetting_the_prefix_cache(make_engine: MakeEngine) -> None:
    async with make_engine() as engine:
        prompt = "x" * 100
        assert (await engine.generate(prompt, FIVE)).usage.cached_tokens == 0
        assert (await engine.generate(prompt, FIVE)).usage.cached_tokens == 96
        engine.reset_prefix_cache()
        assert (await engine.generate(prompt, FIVE)).usage.cached_tokens == 0
        assert (await engine.generate(prompt, FIVE, cache_salt="other")).usage.cached_tokens == 0


async def test_loop_lag_is_measured(make_engine: MakeEngine) -> None:
    async with make_engine(letters) as engine:
        await engine.generate("x", FIVE)
        assert metric(engine, "event_loop_lag_seconds_count") >= 5
        assert engine.busy_seconds >= 0.0
