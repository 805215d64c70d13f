"""Streams that are slow, fail, are cancelled, or whose client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import FakeRunner, Gate, says
from tests.server.harness import USER, Served, events_of, idle, served

pytestmark = pytest.mark.asyncio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def gated() -> FakeRunner:
    return FakeRunner(gate=Gate())


def gate_of(app: Served) -> Gate:
    assert app.runner.gate is not None
    return app.runner.gate


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


class Open:
    """A request that is under way, read as it comes."""

    def __init__(self, app: Served, path: str, body: dict[str, Any], request_id: str = "r") -> None:
        headers = {"content-type": "application/json", "x-request-id": request_id}
        self._connection: Any = app.client.request(path, method="POST", headers=headers)
        self._body = json.dumps(body).encode()
        self.text = ""

    async def __aenter__(self) -> Open:
        await self._connection.__aenter__()
        await self._connection.send(self._body)
        await self._connection.send_complete()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__(None, None, None)

    async def read(self) -> str:
        async with asyncio.timeout(10):
            part: str = (await self._connection.receive()).decode()
        self.text += part
        return part

    async def read_all(self) -> list[Any]:
        while not self.text.endswith("[DONE]\n\n"):
            await self.read()
        return events_of(self.text)

    async def disconnect(self) -> None:
        await self._connection.disconnect()

    @property
    def status(self) -> int | None:
        status: int | None = self._connection.status_code
        return status


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_comments_keep_a_slow_stream_open(path: str) -> None:
    body = {"messages": USER} if path == CHAT else {"prompt": "a"}
    async with (
        served(runner=gated(), sse_ping_interval=0.05) as app,
        Open(app, path, {**body, "stream": True, "max_tokens": 2}) as request,
    ):
        assert await request.read() == ": ping\n\n"  # before the first token
        gate_of(app).allow()
        while "data:" not in request.text:
            await request.read()
        assert await request.read() == ": ping\n\n"  # and between tokens
        gate_of(app).open()
        events = await request.read_all()
    assert len(events) >= 2


async def test_headers_wait_for_the_first_token() -> None:
    async with (
        served(runner=gated()) as app,
        Open(app, TEXT, {"prompt": "a", "stream": True, "max_tokens": 1}) as request,
    ):
        await asyncio.to_thread(gate_of(app).wait_entered)
        assert request.status is None
        gate_of(app).open()
        await request.read_all()
        assert request.status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_in_the_first_step_is_an_ordinary_error(stream: bool) -> None:
    async with served() as app:
        app.runner.fail = RuntimeError("boom")
        answer = await app.post(CHAT, messages=USER, stream=stream)
    assert answer.status == 503
    assert answer.error["code"] == "engine_dead"
    assert "boom" not in answer.text


async def test_a_fault_in_a_later_step_ends_the_stream_with_an_error() -> None:
    async with served(runner=gated()) as app:
        async with Open(app, CHAT, {"messages": USER, "stream": True}) as request:
            gate_of(app).allow(3)
            while request.text.count("data:") < 2:
                await request.read()
            app.runner.fail = RuntimeError("boom")
            gate_of(app).open()
            events = await request.read_all()
        assert events[-1]["error"]["code"] == "engine_dead"
        assert set(events[-1]["error"]) == {"message", "type", "param", "code"}
        assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
        ready = await app.get("/ready")
        assert (ready.status, ready.error["code"]) == (503, "engine_dead")
        assert (await app.get("/health")).status == 200
        assert (await app.post(CHAT, messages=USER)).status == 503


async def test_a_fault_of_one_request_is_its_own() -> None:
    async with (
        served(runner=gated()) as app,
        Open(app, TEXT, {"prompt": "a", "stream": True, "max_tokens": 4}, "bad") as bad,
        Open(app, TEXT, {"prompt": "b", "stream": True, "max_tokens": 4}, "good") as good,
    ):
        await until(lambda: app.engine.num_requests == 2)
        gate_of(app).allow(3)  # the first may have been planned before the second request came
        await asyncio.gather(bad.read(), good.read())
        running = {row[0] for step in app.runner.steps for row in step}
        app.runner.faults = {name: ValueError("boom") for name in running if name.startswith("bad")}
        gate_of(app).open()
        assert (await bad.read_all())[-1]["error"]["code"] == "request_failed"
        assert (await good.read_all())[-1]["choices"][0]["finish_reason"] == "length"


PHASES = ["queued", "prefill", "decode"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_goes_away_stops_its_work(phase: str, stream: bool) -> None:
    async with served(runner=gated(), max_num_seqs=1, max_num_batched_tokens=16) as app:
        gate = gate_of(app)
        body = {"prompt": "x" * 100, "stream": stream, "max_tokens": 1000}
        async with Open(app, TEXT, {"prompt": "b", "max_tokens": 1000}, "first") as first:
            await asyncio.to_thread(gate.wait_entered)
            if phase != "queued":
                await first.disconnect()
            async with Open(app, TEXT, body, "gone") as request:
                await until(lambda: "gone" in app.service._calls)
                if phase == "prefill":
                    gate.allow(3)
                if phase == "decode":
                    gate.allow(20)
                    while stream and "data:" not in request.text:
                        await request.read()
                await request.disconnect()
            if phase == "queued":
                await first.disconnect()
        gate.open()
        await idle(app.engine)
        assert app.service._calls == {}
        metrics = app.engine.metrics_text()
        assert 'tinyllm:num_requests_running{engine="0",model_name="fake"} 0.0' in metrics
        assert (await app.post(TEXT, prompt="a")).status == 200


async def test_a_client_that_goes_away_before_its_body_is_there() -> None:
    async with served() as app:
        connection = app.client.request(TEXT, method="POST", headers={"content-type": "application/json"})
        async with connection:
            await connection.send(b'{"prompt": ')
            await connection.disconnect()
        assert app.runner.steps == []


@pytest.mark.parametrize("by", ["r", "cmpl-r"])
@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_cancelling_a_stream_by_its_id(by: str, method: str) -> None:
    async with served(runner=gated()) as app:
        async with Open(app, TEXT, {"prompt": ["a", "b"], "stream": True, "max_tokens": 900}) as request:
            gate_of(app).allow(2)
            await request.read()
            path = f"/v1/requests/{by}/cancel" if method == "POST" else f"/v1/requests/{by}"
            answer = await app.get(path, method)
            assert (answer.status, answer.json["cancelled"]) == (200, True)
            gate_of(app).open()
            events = await request.read_all()
        assert events[-1]["error"]["code"] == "request_aborted"
        await idle(app.engine)
        gone = await app.get(path, method)
        assert (gone.status, gone.error["code"]) == (404, "request_not_found")


async def test_cancelling_a_whole_answer() -> None:
    async with served(runner=gated()) as app:
        async with Open(app, TEXT, {"prompt": "a", "max_tokens": 900}) as request:
            await asyncio.to_thread(gate_of(app).wait_entered)
            await app.get("/v1/requests/r/cancel", "POST")
            gate_of(app).open()
            error = json.loads(await request.read())["error"]
            assert request.status == 409
        assert error["code"] == "request_aborted"


async def test_requests_of_other_keys_cannot_be_cancelled() -> None:
    keys = ("sk-0123456789abcdef", "sk-fedcba9876543210")
    async with served(runner=gated(), api_keys=keys) as app:
        headers = {"authorization": f"Bearer {keys[0]}", "x-request-id": "mine"}
        task = asyncio.create_task(app.post(TEXT, {"prompt": "a", "max_tokens": 2}, headers=headers))
        await asyncio.to_thread(gate_of(app).wait_entered)
        other = await app.get("/v1/requests/mine/cancel", "POST", Authorization=f"Bearer {keys[1]}")
        assert other.status == 404
        gate_of(app).open()
        assert (await task).status == 200


async def test_a_full_queue_is_429_at_once() -> None:
    async with served(runner=gated(), max_num_seqs=1, max_waiting_requests=1) as app:
        tasks = [asyncio.create_task(app.post(TEXT, prompt="a", max_tokens=2)) for _ in range(2)]
        await asyncio.to_thread(gate_of(app).wait_entered)
        await until(lambda: app.engine.num_requests == 2)
        for stream in (False, True):
            answer = await app.post(TEXT, prompt="a", stream=stream)
            assert (answer.status, answer.error["code"]) == (429, "engine_overloaded")
            assert answer.error["type"] == "rate_limit_error"
            assert int(answer.headers["retry-after"]) >= 1
        assert (await app.get("/ready")).status == 200
        gate_of(app).open()
        assert [answer.status for answer in await asyncio.gather(*tasks)] == [200, 200]


async def test_a_deadline_is_504_or_an_error_event() -> None:
    async with served(runner=gated(), request_timeout=0.2) as app:
        answer = asyncio.create_task(app.post(TEXT, prompt="a"))
        async with Open(app, TEXT, {"prompt": "a", "stream": True, "max_tokens": 900}, "s") as request:
            gate_of(app).allow(4)
            await request.read()
            await asyncio.sleep(0.25)
            gate_of(app).open()
            events = await request.read_all()
        assert events[-1]["error"]["code"] == "request_timeout"
        assert (await answer).status in (200, 504)


async def test_one_id_twice_is_two_requests() -> None:
    async with served(says("ab")) as app:
        answers = await asyncio.gather(
            *(app.post(TEXT, {"prompt": "a"}, headers={"x-request-id": "same"}) for _ in range(5))
        )
        assert [answer.status for answer in answers] == [200] * 5
        assert app.service._calls == {}


async def test_long_prompts_of_a_list_interleave() -> None:
    """More prompts than run at once, and each stream is read as its pieces come."""
    async with served(max_num_seqs=4, stream_buffer_size=2) as app:
        answer = await app.stream(TEXT, prompt=[f"p{i}" for i in range(12)], max_tokens=20)
    lengths: dict[int, int] = {}
    for choice in (choice for event in answer.events for choice in event["choices"]):
        lengths[choice["index"]] = lengths.get(choice["index"], 0) + len(choice["text"])
    assert lengths == dict.fromkeys(range(12), 20)
