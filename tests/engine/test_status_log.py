from __future__ import annotations

import logging

import pytest

from tests.engine.conftest import MakeEngine
from tests.fakes import FakeRunner
from tinyllm import RequestAbortedError, RequestFailedError, SamplingParams
from tinyllm.engine.status_log import StatusLog
from tinyllm.metrics import StepStats


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tinyllm.status"]


def test_one_line_an_interval_with_the_rates_in_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tinyllm")
    log = StatusLog(10.0)
    for now in range(21):
        stats = StepStats(
            num_running=2,
            num_waiting=1,
            kv_cache_usage=0.25,
            prompt_tokens=30,
            generation_tokens=4,
            prefix_cache_queries=10,
            prefix_cache_hits=5,
        )
        log.add(stats, float(now))
    assert len(lines(caplog)) == 2
    # Eleven steps in the first ten seconds, ten in the next.
    assert lines(caplog)[1] == (
        "running 2, waiting 1, stalled 0; prompt 30.0 tokens/s, generation 4.0 tokens/s; "
        "KV cache 25.0%, prefix cache hits 50.0%"
    )


def test_nothing_is_logged_while_there_is_no_work_or_no_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tinyllm")
    idle, never = StatusLog(10.0), StatusLog(0)
    for now in range(0, 100, 5):
        idle.add(StepStats(), float(now))
        never.add(StepStats(num_running=1), float(now))
    assert lines(caplog) == []


def test_the_interval_begins_with_the_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tinyllm")
    log = StatusLog(10.0)
    log.add(StepStats(), 0.0)
    log.add(StepStats(num_running=1, generation_tokens=1), 1000.0)
    assert lines(caplog) == []
    log.add(StepStats(num_running=1, generation_tokens=19), 1010.0)
    assert "generation 2.0 tokens/s" in lines(caplog)[0]


@pytest.mark.anyio
async def test_no_log_has_a_word_of_prompt_or_answer(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    runner = FakeRunner(lambda request: ord("Q"))
    runner.faults["bad/0"] = ValueError("hook")
    async with make_engine(runner=runner, status_log_interval=1e-9) as engine:
        secret = "SECRETWORD"
        answer = await engine.generate(secret, SamplingParams(max_tokens=10))
        assert answer.text == "QQQQQQQQQQ"
        with pytest.raises(RequestFailedError):
            await engine.generate(secret, SamplingParams(max_tokens=10), request_id="bad")
        stream = engine.chat([{"role": "user", "content": secret}], SamplingParams(max_tokens=1000))
        engine.abort(stream.request_id)
        with pytest.raises(RequestAbortedError):
            await stream
    ours = [record for record in caplog.records if record.name.startswith("tinyllm")]
    assert any(record.name == "tinyllm.status" for record in ours)
    assert any("request bad ended: error" in record.getMessage() for record in ours)
    for record in ours:
        assert secret not in record.getMessage()
        assert "QQ" not in record.getMessage()
