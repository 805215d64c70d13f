"""Loading, ready, draining, dead: what the server says in each, and the small endpoints."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import partial
from typing import Any

import pytest

from tests.fakes import FakeRunner, Gate, build_fake_core
from tests.server.harness import USER, Served, served
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.errors import CheckpointError
from tinyllm.server.app import create_app
from tinyllm.server.service import Service, model_name
from tinyllm.server.settings import ServerConfig

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"


def app_of(build: Any) -> tuple[Service, Served]:
    config = ServerConfig()
    engine = AsyncEngine(config.engine_config, _build=build)
    app = create_app(config, engine)
    service: Service = app.extensions["tinyllm"]
    return service, Served(app, app.test_client(), service, engine, FakeRunner(), None)  # type: ignore[arg-type]


async def test_a_server_that_loads_says_so() -> None:
    go = threading.Event()

    def slow(config: Any) -> Any:
        go.wait(10)
        return build_fake_core(config)

    service, app = app_of(slow)
    async with app.app.test_app():
        for path in ("/ready", "/props"):
            answer = await app.get(path)
            assert (answer.status, answer.error["code"]) == (503, "model_loading")
            assert answer.headers["retry-after"].isdigit()
        assert (await app.post(CHAT, messages=USER)).error["code"] == "model_loading"
        assert (await app.get("/health")).json == {"status": "ok"}
        assert (await app.get("/live")).status == 200
        assert "tinyllm:" not in (await app.get("/metrics")).text
        assert (await app.get("/v1/models")).json["data"][0]["max_model_len"] is None
        go.set()
        while (await app.get("/ready")).status != 200:  # noqa: ASYNC110  as a probe does
            await asyncio.sleep(0.001)
    assert service.fault is None


async def test_a_server_can_be_stopped_while_it_loads() -> None:
    go = threading.Event()

    def slow(config: Any) -> Any:
        go.wait(10)
        return build_fake_core(config)

    _, app = app_of(slow)
    async with app.app.test_app():
        asyncio.get_running_loop().call_later(0.05, go.set)


async def test_a_model_that_cannot_be_loaded() -> None:
    def broken(_: Any) -> Any:
        raise CheckpointError("cut off", file="model.safetensors")

    service, app = app_of(broken)
    async with app.app.test_app():
        assert isinstance(await service.wait_failed(), CheckpointError)
        answer = await app.get("/ready")
        assert (answer.status, answer.error["code"]) == (503, "model_failed")
        assert "safetensors" not in answer.text
        assert (await app.post(CHAT, messages=USER)).status == 503


async def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    async with served(runner=FakeRunner(gate=Gate())) as app:
        gate = app.runner.gate
        assert gate is not None
        old = asyncio.create_task(app.post("/v1/completions", prompt="a", max_tokens=2))
        await asyncio.to_thread(gate.wait_entered)
        drain = asyncio.create_task(app.service.drain())
        await asyncio.sleep(0)
        for answer in (await app.get("/ready"), await app.post("/v1/completions", prompt="b")):
            assert (answer.status, answer.error["code"]) == (503, "server_shutting_down")
        assert (await app.get("/health")).status == 200
        gate.open()
        assert (await old).status == 200
        assert await drain is True


async def test_a_drain_has_an_end() -> None:
    async with served(runner=FakeRunner(gate=Gate()), shutdown_timeout=0.05) as app:
        gate = app.runner.gate
        assert gate is not None
        old = asyncio.create_task(app.post("/v1/completions", prompt="a", max_tokens=900))
        await asyncio.to_thread(gate.wait_entered)
        drain = asyncio.create_task(app.service.drain())
        await asyncio.sleep(0.1)
        gate.open()
        assert await drain is False
        ended = await old
        assert (ended.status, ended.error["code"]) == (503, "server_shutting_down")
        assert ended.headers["retry-after"] == "2"


async def test_an_engine_that_hangs_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as app:
        monkeypatch.setattr(AsyncEngine, "busy_seconds", property(lambda _: 99.0))
        answer = await app.get("/ready")
        assert (answer.status, answer.error["code"]) == (503, "engine_stalled")


async def test_a_running_engine_is_used_and_left_running() -> None:
    config = ServerConfig()
    async with AsyncEngine(config.engine_config, _build=partial(build_fake_core)) as engine:
        app = create_app(config, engine)
        async with app.test_app():
            client = app.test_client()
            response = await client.post(CHAT, json={"messages": USER, "max_tokens": 1})
            assert response.status_code == 200
        assert (await engine.generate("a")).text


async def test_ready_version_props_and_page() -> None:
    async with served(max_num_seqs=5, hub_token="hf-secret", reasoning="think") as app:
        assert (await app.get("/ready")).json["status"] == "ready"
        assert (await app.get("/version")).json["version"]
        props = (await app.get("/props")).json
        assert props["max_model_len"] == 2048
        assert props["engine_options"]["max_num_seqs"] == 5
        assert props["engine_options"]["enable_prefix_caching"] is False
        assert props["server_options"]["max_body_bytes"] == 1 << 20
        assert props["reasoning"] is True
        assert "hf-secret" not in str(props)
        assert "<title>tinyllm" in (await app.get("/docs")).text
        assert "tinyllm:" in (await app.get("/metrics")).text


NO_TEXTS: list[dict[str, Any]] = [
    {},
    {"prompt": "a", "messages": USER},
    {"prompt": 7},
    {"prompt": ["a"]},
    {"messages": []},
]
NO_TOKENS: list[dict[str, Any]] = [
    {},
    {"tokens": [-1]},
    {"tokens": [2**32]},
    {"tokens": "a"},
    {"tokens": [1.0]},
    {"tokens": [True]},
]


async def test_tokenize_and_back() -> None:
    async with served() as app:
        body = (await app.post("/tokenize", prompt="aé", return_token_strs=True)).json
        assert body == {
            "count": 3,
            "max_model_len": 2048,
            "tokens": [97, 195, 169],
            "token_strs": ["a", "�", "�"],
        }
        assert (await app.post("/detokenize", tokens=[97, 195, 169])).json == {"prompt": "aé"}
        long = "x" * 10_000
        assert (await app.post("/tokenize", prompt=long, add_special_tokens=False)).json["count"] == 10_000
        chat = (await app.post("/tokenize", messages=USER)).json["tokens"]
        assert (await app.post("/detokenize", tokens=chat)).json["prompt"] == "user: hi\nassistant:"
        for bad in NO_TEXTS:
            assert (await app.post("/tokenize", bad)).status == 400, bad
        for bad in NO_TOKENS:
            assert (await app.post("/detokenize", bad)).status == 400, bad
        assert (await app.post("/detokenize", tokens=[4_000_000])).json["prompt"] == ""
        assert (await app.post("/tokenize", prompt="a", model="x")).status == 404


async def test_static_files_stay_in_their_place() -> None:
    async with served() as app:
        for path in ("../app.py", "..%2fapp.py", "%2e%2e/errors.py", "/etc/passwd", "x/../../app.py", ""):
            answer = await app.get(f"/static/{path}")
            assert answer.status == 404, path


async def test_the_page_and_its_files() -> None:
    async with served(api_keys=("sk-0123456789abcdef",), ready=False) as app:
        page = await app.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        files = re.findall(r'(?:src|href)="(static/[^"]+)"', page.text)
        assert files
        for file in files:
            answer = await app.get(f"/{file}")
            assert answer.status == 200, file
            assert "script-src 'self'" in answer.headers["content-security-policy"]
            if file.endswith(".js"):
                assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
        assert (await app.get("/static/package.json")).status == 404


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (None, "SmolLM2-135M-Instruct"),
        ("org/name", "org/name"),
        ("/no/such/model.gguf", "model.gguf"),
        ("/no/such/m\udcff\n.gguf", "m??.gguf"),
    ],
)
async def test_what_a_model_is_called(model: str | None, name: str) -> None:
    assert model_name(model) == name
    assert model_name(str(__file__)) == "test_life.py"
