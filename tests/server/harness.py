"""An application over the fakes: the real engine, threads and scheduler, without a model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from quart import Quart
from quart.typing import TestClientProtocol

from tests.fakes import FakeRunner, FakeTemplates, Script, build_fake_core, letters
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.server.app import create_app
from tinyllm.server.service import Service
from tinyllm.server.settings import ServerConfig

USER = [{"role": "user", "content": "hi"}]


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str
    events: list[Any] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        body = self.json
        assert self.headers["content-type"] == "application/json"
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        error: dict[str, Any] = body["error"]
        return error


@dataclass
class Served:
    app: Quart
    client: TestClientProtocol
    service: Service
    engine: AsyncEngine
    runner: FakeRunner
    templates: FakeTemplates

    async def get(self, path: str, method: str = "GET", **headers: str) -> Answer:
        call = getattr(self.client, method.lower())
        return await _answer(await call(path, headers=_named(headers)))

    async def post(self, path: str, body: Any = None, /, headers: Any = None, **fields: Any) -> Answer:
        response = await self.client.post(path, json=body if body is not None else fields, headers=headers)
        return await _answer(response)

    async def post_raw(self, path: str, data: bytes, **headers: str) -> Answer:
        named = {"content-type": "application/json", **_named(headers)}
        return await _answer(await self.client.post(path, data=data, headers=named))

    async def stream(self, path: str, **fields: Any) -> Answer:
        """Post with ``stream: true``, and take the events apart; checks what holds for every stream."""
        answer = await self.post(path, stream=True, **fields)
        assert answer.status == 200, answer.text
        answer.events = events_of(answer.text)
        return answer


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


async def _answer(response: Any) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, await response.get_data(as_text=True))


def events_of(text: str) -> list[Any]:
    """Return the data of the events of an OpenAI stream, which must end with one ``[DONE]``."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert text.endswith("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks), blocks
    data = [block.removeprefix("data: ") for block in blocks]
    assert data.count("[DONE]") == 1
    assert data[-1] == "[DONE]"
    return [json.loads(one) for one in data[:-1]]


@asynccontextmanager
async def served(
    script: Script = letters, *, runner: FakeRunner | None = None, ready: bool = True, **options: Any
) -> AsyncIterator[Served]:
    config = ServerConfig(**options)
    runner = runner or FakeRunner(script)
    templates = FakeTemplates()
    build = partial(build_fake_core, runner=runner, templates=templates)
    engine = AsyncEngine(config.engine_config, _build=build)
    app = create_app(config, engine)
    service: Service = app.extensions["tinyllm"]
    await app.startup()
    try:
        while ready and service.unavailable() is not None:  # noqa: ASYNC110  as clients do
            await anyio.sleep(0.001)
        yield Served(app, app.test_client(), service, engine, runner, templates)
    finally:
        if runner.gate is not None:
            runner.gate.open()
        await app.shutdown()


async def idle(engine: AsyncEngine) -> None:
    """Wait until the engine has nothing to do; fails if that takes longer than cancelling may."""
    with anyio.fail_after(5):
        while engine.num_requests:  # noqa: ASYNC110
            await anyio.sleep(0.002)
