"""A client may go away at any moment: whatever the server is doing then, nothing runs on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

from tests.fakes import FakeRunner, Gate
from tests.server.harness import Served, idle, served
from tinyllm.core.request import Request

pytestmark = pytest.mark.asyncio


def scope_of(path: str, body: bytes) -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "extensions": {},
    }


async def hang_up(app: Served, turns: int, path: str, **fields: Any) -> None:
    """Send a request, and go away after so many turns of the event loop."""
    body = json.dumps(fields).encode()
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": body, "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> MutableMapping[str, Any]:
        if len(messages) == 1:
            for _ in range(turns):
                await asyncio.sleep(0)
        return messages.pop(0)

    async def send(_: Any) -> None:
        pass

    async with asyncio.timeout(10):
        await app.app.asgi_app(scope_of(path, body), receive, send)  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"], "x" * 5000], ids=["one", "list", "long"])
async def test_going_away_at_any_turn_of_the_loop(stream: bool, prompt: Any) -> None:
    ran: set[str] = set()

    def endless(request: Request) -> int:
        ran.add(request.request_id)
        time.sleep(0.0005)  # a whole answer takes a second, in which no client is that patient
        return 97

    async with served(endless) as app:
        for turns in range(40):
            fields: dict[str, Any] = {"prompt": prompt, "stream": stream, "ignore_eos": True}
            await hang_up(app, turns, "/v1/completions", max_tokens=1000, **fields)
            await idle(app.engine)
        for turns in range(40):
            await hang_up(
                app,
                turns,
                "/v1/chat/completions",
                messages=[{"role": "user", "content": "hi"}],
                stream=stream,
                ignore_eos=True,
            )
            await idle(app.engine)
        labels = {"model_name": "fake", "engine": "0", "finished_reason": "length"}
        assert app.engine.registry.get_sample_value("tinyllm:request_success_total", labels) == 0
    assert ran, "no turn was late enough for anything to run"


async def test_going_away_while_the_engine_is_busy() -> None:
    gate = Gate()
    async with served(runner=FakeRunner(gate=gate)) as app:
        for turns in range(20):
            await hang_up(app, turns, "/v1/completions", prompt="a", stream=True)
        gate.open()
        await idle(app.engine)
