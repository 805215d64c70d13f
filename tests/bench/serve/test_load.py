"""A load is put on a server as planned."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.bench.serve.scripted import Reply, Script, Scripted, scripted, whole
from tinyllm.bench.serve import lag
from tinyllm.bench.serve.arrivals import Arrivals
from tinyllm.bench.serve.client import Target
from tinyllm.bench.serve.load import Plan, run_load
from tinyllm.bench.serve.records import Limits, RequestRecord, RunResult, read_result
from tinyllm.bench.serve.samples import CHAT, Sample, Turn
from tinyllm.bench.serve.server_view import load_of, parse_metrics, ready_target
from tinyllm.errors import ConfigError, EngineError


async def answer(body: dict[str, Any], reply: Reply) -> None:
    await whole(reply, ["one", " two"])


def one_turn(count: int) -> list[Sample]:
    return [Sample((Turn(f"prompt {number}", 2),)) for number in range(count)]


def run(
    script: Script,
    samples: Sequence[Sample],
    *,
    metrics: str | None = None,
    backend: str = "openai",
    **plan: Any,
) -> tuple[RunResult, Scripted]:
    async def main() -> tuple[RunResult, Scripted]:
        async with scripted(script) as server:
            server.metrics = metrics
            return await run_load(Plan(server.target(backend=backend), samples, **plan)), server

    return asyncio.run(main())


def test_a_closed_loop_keeps_its_concurrency() -> None:
    now = most = 0

    async def script(body: dict[str, Any], reply: Reply) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1  # before the client can see the end and send the next
        await whole(reply, ["x"])

    result, server = run(script, one_turn(12), arrivals=Arrivals(max_concurrency=3))
    assert most == 3
    assert result.summary["completed"] == len(server.bodies) == 12
    assert result.summary["peak_in_flight"] == 3
    assert result.metadata["arrivals"]["kind"] == "closed"


@pytest.mark.parametrize("arrivals", [Arrivals(max_concurrency=3), Arrivals(request_rate=1000.0)])
def test_an_interrupted_run_keeps_what_was_answered(arrivals: Arrivals) -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        if body["prompt"] in ("prompt 0", "prompt 1"):
            await whole(reply, ["one"])
        else:
            await asyncio.Event().wait()

    async def main(*, keep: bool) -> RunResult:
        answered = []

        def on_finished(record: RequestRecord) -> None:
            answered.append(record)
            if len(answered) == 2:
                task.cancel()

        async with scripted(script) as server:
            plan = Plan(server.target(), one_turn(6), arrivals=arrivals)
            task = asyncio.create_task(run_load(plan, on_finished=on_finished, keep_if_interrupted=keep))
            return await task

    result = asyncio.run(main(keep=True))
    assert (result.summary["completed"], len(result.requests)) == (2, 2)
    assert result.metadata["interrupted"]
    assert any("interrupted" in warning for warning in result.warnings)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main(keep=False))


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_keeps_what_was_answered(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    command = [
        sys.executable,
        "-m",
        "tinyllm",
        "bench",
        "serve",
        "--max-concurrency",
        "1",
        "--vocab-size",
        "900",
    ]
    command += ["--random-input-len", "5", "--random-output-len", "2", "--json", str(path)]

    async def main() -> int:
        measured = 0

        async def script(body: dict[str, Any], reply: Reply) -> None:
            nonlocal measured
            measured += body["max_tokens"] > 1  # the others ask whether the server is ready
            if measured < 3:
                await whole(reply, ["one", " two"])
            else:
                process.send_signal(signal.SIGINT)
                await asyncio.Event().wait()

        async with scripted(script) as server:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--base-url",
                server.url,
                # A background job inherits that it is ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            return await process.wait()

    assert asyncio.run(main()) == 130
    assert read_result(path).summary["completed"] == 2


def test_an_open_loop_does_not_wait_for_answers() -> None:
    all_came = asyncio.Event()

    async def script(body: dict[str, Any], reply: Reply) -> None:
        if body["prompt"] == "prompt 9":
            all_came.set()
        await all_came.wait()
        await whole(reply, ["x"])

    result, _ = run(script, one_turn(10), arrivals=Arrivals(request_rate=200))
    assert result.summary["completed"] == 10
    assert result.summary["peak_in_flight"] == 10
    due = [record.scheduled for record in result.requests]
    assert due == sorted(due)
    assert due[-1] == pytest.approx(9 / 200)
    assert all(record.delay is not None and record.delay >= 0 for record in result.requests)
    assert "send_p99_ms" in result.client_lag


def test_what_is_due_but_not_let_in_waits() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await asyncio.sleep(0.02)
        await whole(reply, ["x"])

    result, _ = run(script, one_turn(4), arrivals=Arrivals(request_rate=1e4, max_concurrency=1))
    assert result.summary["peak_in_flight"] == 1
    assert result.requests[3].delay is not None
    assert result.requests[3].delay > 0.05
    assert "send_p99_ms" not in result.client_lag, "that wait is no lag of the client"


def test_later_turns_are_sent_after_the_answer_and_contain_it() -> None:
    samples = [Sample((Turn("a?", 2), Turn("b?", 2)))]
    result, server = run(answer, samples, backend=CHAT, arrivals=Arrivals(max_concurrency=1))
    assert [message["content"] for message in server.bodies[1]["messages"][:1]] == ["a?"]
    assert len(server.bodies[1]["messages"]) == 3
    first, second = result.requests
    assert (second.conversation, second.turn, second.index) == (0, 1, 1)
    assert second.scheduled == first.finished


def test_a_conversation_ends_with_a_failure() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.json({"error": {"message": "no"}}, 500)

    seen: list[RequestRecord] = []

    async def main() -> RunResult:
        async with scripted(script) as server:
            samples = [Sample((Turn("a?", 2), Turn("b?", 2), Turn("c?", 2)))]
            result = await run_load(Plan(server.target(), samples), on_finished=seen.append)
            assert len(server.bodies) == 1
            return result

    result = asyncio.run(main())
    assert result.summary["errors"] == {"http_500": 1, "not_sent": 2}
    assert seen == result.requests


def test_a_trace_is_sent_in_its_order() -> None:
    samples = [
        Sample((Turn(text, 2),), timestamp=stamp) for text, stamp in (("c", 0.03), ("a", 0), ("b", 0.01))
    ]
    arrivals = Arrivals(use_timestamps=True, max_concurrency=1)
    result, server = run(answer, samples, arrivals=arrivals)
    assert [body["prompt"] for body in server.bodies] == ["a", "b", "c"]
    assert [record.scheduled for record in result.requests] == pytest.approx([0, 0.01, 0.03])


def test_warm_ups_are_sent_and_not_measured() -> None:
    warmups = [Sample((Turn("warm", 2),))] * 3
    result, server = run(answer, one_turn(2), warmups=warmups)
    assert [body["prompt"] for body in server.bodies[:3]] == ["warm"] * 3
    assert len(result.requests) == 2
    assert result.metadata["warmups"] == 3


def test_a_warm_up_that_fails_ends_it() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.json({"error": {"message": "no such model"}}, 404)

    with pytest.raises(EngineError, match="no such model"):
        run(script, one_turn(1), warmups=one_turn(1))


METRICS = """# HELP x y
tinyllm:num_requests_running{model_name="m",engine="0"} 2.0
tinyllm:num_requests_running{model_name="m",engine="1"} 1.0
tinyllm:num_requests_waiting{model_name="m"} 5.0
tinyllm:kv_cache_usage_perc{model_name="m"} 0.25
tinyllm:e2e_request_latency_seconds_bucket{le="0.3"} 7.0
tinyllm:request_success_total{finished_reason="stop"} 4.0
tinyllm:odd NaN
python_info 1.0
"""


def test_the_servers_own_view_is_on_the_timeline() -> None:
    result, _ = run(
        answer, one_turn(3), metrics=METRICS, arrivals=Arrivals(request_rate=100), sample_seconds=0.01
    )
    point = result.timeline[0]
    assert (point.running, point.waiting, point.kv_usage) == (3.0, 5.0, 0.25)
    assert len(result.timeline) > 1
    assert [point.t for point in result.timeline] == sorted(point.t for point in result.timeline)
    assert result.server_metrics["before"] == result.server_metrics["after"] == parse_metrics(METRICS)
    assert "tinyllm:odd" not in result.server_metrics["after"]
    json.dumps(result.to_json(), allow_nan=False)


def test_without_metrics_there_is_the_clients_view() -> None:
    result, server = run(answer, one_turn(3), arrivals=Arrivals(request_rate=100), sample_seconds=0.01)
    assert result.server_metrics == {"before": {}, "after": {}}
    assert result.timeline[0].running is None
    assert server.asked.count("/metrics") == 1, "not asked again"


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ("vllm:num_requests_running 1\nvllm:gpu_cache_usage_perc 0.5", (1, None, 0.5)),
        ("sglang:num_running_reqs 1\nsglang:num_queue_reqs 2\nsglang:token_usage 0.5", (1, 2, 0.5)),
        ("llamacpp:requests_processing 1\nllamacpp:requests_deferred 2", (1, 2, None)),
    ],
)
def test_other_servers_have_other_names(series: str, expected: tuple[float | None, ...]) -> None:
    assert tuple(load_of(parse_metrics(series)).values()) == expected


def test_limits_make_goodput() -> None:
    result, _ = run(answer, one_turn(3), limits=Limits(ttft=0.000001))
    assert (result.summary["good"], result.summary["completed"]) == (0, 3)


def cached(share: int) -> Script:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        await reply.chunk("x", "length")
        await reply.usage(100, 1, share)
        await reply.done()

    return script


def test_cached_prompts_are_warned_of() -> None:
    result, _ = run(cached(90), one_turn(2))
    assert any("another --seed" in warning for warning in result.warnings)
    assert result.summary["cached_share"] == 0.9
    for quiet in (run(cached(90), one_turn(2), shares_prompts=True), run(cached(40), one_turn(2))):
        assert not any("cache" in warning for warning in quiet[0].warnings)


def test_what_is_not_known_is_warned_of() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        await reply.chunk("x", "length")

    result, _ = run(script, one_turn(2))
    assert any("does not say" in warning for warning in result.warnings)
    assert any("without usage" in warning for warning in result.warnings)


def test_answers_shorter_than_asked_are_warned_of() -> None:
    async def main() -> RunResult:
        async with scripted(cached(0)) as server:
            return await run_load(Plan(server.target(ignore_eos=True), one_turn(2)))

    assert any("ignore_eos" in warning for warning in asyncio.run(main()).warnings)


def test_a_client_that_is_late_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "MAX_LAG_MS", -1.0)
    result, _ = run(answer, one_turn(2), arrivals=Arrivals(request_rate=100))
    assert "itself late" in result.warnings[0]
    assert {"p50_ms", "p99_ms", "max_ms", "cpu_share"} <= result.client_lag.keys()


def test_a_timer_that_is_held_up_is_seen() -> None:
    async def main() -> dict[str, Any]:
        watch = lag.LagWatch()
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.02)
        import time

        time.sleep(0.1)  # noqa: ASYNC251  holds up the loop
        await asyncio.sleep(0.01)
        task.cancel()
        return watch.report([], by_the_clock=True)

    assert asyncio.run(main())["max_ms"] > 50


@pytest.mark.parametrize(
    ("samples", "options"),
    [
        ([], {}),
        ([Sample((Turn([{"role": "user", "content": "x"}], 1),))], {}),
        ([Sample((Turn([1], 1), Turn([2], 1)))], {}),
        ([Sample((Turn("x", 1),))], {"arrivals": Arrivals(use_timestamps=True)}),
    ],
)
def test_what_would_fail_midway_is_refused_before(samples: list[Sample], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        asyncio.run(run_load(Plan(Target("http://127.0.0.1:9", model="m"), samples, **options)))


def test_the_model_is_the_servers_first() -> None:
    async def main() -> str:
        async with scripted(answer) as server:
            target = await ready_target(server.target(model=""), 0)
            assert server.bodies[0]["max_tokens"] == 1
            return target.model

    assert asyncio.run(main()) == "scripted"


def test_a_server_may_take_its_time_to_be_ready() -> None:
    tries = 0

    async def script(body: dict[str, Any], reply: Reply) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            await reply.json({"error": {"message": "loading"}}, 503)
        else:
            await whole(reply, ["x"])

    async def main(patience: float) -> None:
        async with scripted(script) as server:
            await ready_target(server.target(), patience)

    with pytest.raises(EngineError, match="loading"):
        asyncio.run(main(0))
    tries = 0
    asyncio.run(main(20))
    assert tries == 2


def test_a_server_without_models_is_told_at_once() -> None:
    async def main() -> None:
        async with scripted(answer) as server:
            del server.pages["/v1/models"]
            await ready_target(server.target(model=""), 1000)

    with pytest.raises(EngineError, match="--model"):
        asyncio.run(main())
