"""The HTTP side of sections D1, D2, D3 and D6 of shared/design/conformance.md, over the fakes.

Sockets, signals and processes are in tests/server/test_process.py.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from quart import typing as quart_typing

from tests.conformance.support import SMALL
from tests.engine.support import num_used_blocks
from tests.fakes import EOS, FakeRunner, Gate, says
from tests.server.harness import USER, Answer, idle, served
from tests.server.test_streams import Open
from tinyllm.core.request import Request
from tinyllm.core.step import SampledToken, TokenScores
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.server.app import create_app
from tinyllm.server.settings import ServerConfig

pytestmark = pytest.mark.asyncio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, dict[str, Any]] = {CHAT: {"messages": USER}, TEXT: {"prompt": "hi"}}
LLAMA = "🦙"


def joined(answer: Answer) -> str:
    choices = [choice for event in answer.events for choice in event["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)


async def test_d08_tokens_as_ids_and_bytes() -> None:
    """Byte fragments: ``bytes`` exact for each, together the content; ``token_id:N`` if asked for."""
    async with served(says(f"a{LLAMA}")) as app:
        body = {"messages": USER, "logprobs": True, "top_logprobs": 1}
        content = (await app.post(CHAT, **body)).json["choices"][0]["logprobs"]["content"]
        named = (await app.post(CHAT, **body, return_tokens_as_token_ids=True)).json
    assert bytes(byte for entry in content[:-1] for byte in entry["bytes"]).decode() == f"a{LLAMA}"
    tokens = [entry["token"] for entry in named["choices"][0]["logprobs"]["content"]]
    assert tokens == [f"token_id:{token_id}" for token_id in (*f"a{LLAMA}".encode(), EOS)]


@pytest.mark.parametrize("stop", ["\nUser:", "the end", LLAMA])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d11_no_character_leaks(path: str, stop: str) -> None:
    """A stop string split over tokens, on either route, streamed or not: none of it is shown."""
    async with served(says(f"Once {stop} upon")) as app:
        answer = await app.stream(path, **BODY[path], stop=[stop], max_tokens=99, logprobs=None)
        whole = (await app.post(path, **BODY[path], stop=stop, max_tokens=99)).json["choices"][0]
    assert joined(answer) == "Once "
    assert (whole.get("text") or whole["message"]["content"]) == "Once "
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d22_stop_token_ids_that_do_not_exist(path: str) -> None:
    """Ids beyond the vocabulary or negative: 400 that names the field, and the next request runs."""
    async with served() as app:
        for wrong in ([258], [-1], [10**15], [1.5], ["7"], 258):
            answer = await app.post(path, **BODY[path], stop_token_ids=wrong, min_tokens=1)
            assert (answer.status, answer.error["param"]) == (400, "stop_token_ids")
        assert app.runner.steps == []
        assert (await app.post(path, **BODY[path], stop_token_ids=[97], max_tokens=3)).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_d23_beyond_the_context(stream: bool) -> None:
    """Prompt >= context, prompt + max_tokens > context: 400 context_length_exceeded with the numbers."""
    async with served(max_model_len=64) as app:
        for prompt, max_tokens in (("x" * 64, 1), ("x" * 100, 0), ("x" * 60, 5), ("x", 10**15)):
            answer = await app.post(TEXT, prompt=prompt, max_tokens=max_tokens, stream=stream)
            assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
            assert "64" in answer.error["message"]
            assert "-" not in answer.error["message"]
        long_chat = await app.post(CHAT, messages=[{"role": "user", "content": "x" * 90}], stream=stream)
        assert (long_chat.status, long_chat.error["code"]) == (400, "context_length_exceeded")
        fits = await app.post(TEXT, prompt="x" * 60, max_tokens=4)
        assert fits.json["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d25_d26_wrong_values(path: str) -> None:
    """Wrong sampling values and biases of tokens that do not exist: 400 with ``param``; the next runs."""
    wrong: dict[str, list[Any]] = {
        "top_k": [0.01, "5", -2],
        "top_p": [0, 1.5],
        "n": [0],
        "temperature": [-1, "hot"],
        "logit_bias": [{"999999": 5}, {"-1": 5}, {"9" * 5000: 5}, {"97": 101}],
    }
    async with served() as app:
        for param, values in wrong.items():
            for value in values:
                answer = await app.post(path, **BODY[path], **{param: value})
                assert (answer.status, answer.error["param"]) == (400, param), value
                assert len(answer.error["message"]) < 400
        named = json.dumps({**BODY[path], "temperature": math.nan}).encode()
        assert (await app.post_raw(path, named)).status == 400
        assert app.runner.steps == []
        for top_k in (0, -1, 10**15):
            assert (await app.post(path, **BODY[path], top_k=top_k, max_tokens=1)).status == 200


class Certain(FakeRunner):
    """All other tokens are impossible."""

    def _sample(self, request: Request) -> SampledToken:
        token_id = self.script(request)
        return SampledToken(token_id, TokenScores(token_id, 0.0, ((token_id, 0.0), (1, -math.inf))))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d30_what_is_impossible_is_a_number(path: str, stream: bool) -> None:
    """Minus infinity among the alternatives: strict JSON, where it is -9999.0."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 2} if path == CHAT else {"logprobs": 2}
    async with served(runner=Certain(says("a"))) as app:
        text = (await app.post(path, **BODY[path], **more, stream=stream)).text
    assert "-9999.0" in text
    for line in text.replace("data: [DONE]", "").splitlines():
        if line := line.removeprefix("data: "):
            json.loads(line, parse_constant=refuse)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "text"), [("ab", "cd"), ("a é", f"b {LLAMA} 漢字 c"), ("né", "é")])
async def test_d31_offsets_are_places_in_the_text(prompt: str, text: str, stream: bool) -> None:
    """echo and logprobs: ``text_offset`` of each token is its place in the joined text, also of fragments."""
    async with served(says(text)) as app:
        body = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": len(text.encode())}
        if stream:
            choices = [c for event in (await app.stream(TEXT, **body)).events for c in event["choices"]]
        else:
            choices = (await app.post(TEXT, **body)).json["choices"]
    whole = "".join(choice["text"] for choice in choices)
    offsets = [place for choice in choices for place in choice["logprobs"]["text_offset"]]
    assert whole == prompt + text
    # Every token is a byte here: it lies in the character that its byte is part of.
    assert offsets == [place for place, character in enumerate(whole) for _ in character.encode()]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d32_two_answers_with_scores_and_usage(path: str) -> None:
    """n 2, logprobs 0, stream, include_usage: both complete, one finish_reason each, no error event."""
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 0} if path == CHAT else {"logprobs": 0}
    async with served() as app:
        options = {"n": 2, "max_tokens": 5, "stream_options": {"include_usage": True}}
        answer = await app.stream(path, **BODY[path], **more, **options)
    usage = answer.events[-1]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 10)
    choices = [choice for event in answer.events for choice in event["choices"]]
    for index in range(2):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [c["finish_reason"] for c in mine if c["finish_reason"] is not None] == ["length"]
        scored = [c["logprobs"] for c in mine if c.get("logprobs")]
        key = "content" if path == CHAT else "tokens"
        assert sum(len(part[key]) for part in scored) == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_d51_a_dropped_client_frees_its_blocks(stream: bool) -> None:
    """The client goes away in its answer: no block is held, nothing runs, and it is counted."""
    async with served(runner=FakeRunner(gate=Gate())) as app:
        gate = app.runner.gate
        assert gate is not None
        async with Open(app, TEXT, {"prompt": "x" * 50, "stream": stream, "max_tokens": 900}) as request:
            gate.allow(3)
            await asyncio.to_thread(gate.wait_entered)
            await request.disconnect()
        gate.open()
        await idle(app.engine)
        assert await num_used_blocks(app.engine) == 0
        cancels = [
            line for line in app.engine.metrics_text().splitlines() if "requests_cancelled_total{" in line
        ]
        assert sum(float(line.split()[-1]) for line in cancels) == 1


@asynccontextmanager
async def real(model: Path, **options: Any) -> AsyncIterator[quart_typing.TestClientProtocol]:
    """Serve a real checkpoint."""
    config = ServerConfig(model=str(model), **SMALL, **options)
    app = create_app(config, AsyncEngine(config.engine_config))
    async with app.test_app():
        client = app.test_client()
        while (await client.get("/ready")).status_code != 200:  # noqa: ASYNC110  as a probe does
            await asyncio.sleep(0.01)
        yield client


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d58_a_step_that_raises(path: str) -> None:
    """A step raises: waiting streams end with an error, /ready is 503, later requests are refused at once."""
    async with served(runner=FakeRunner(gate=Gate())) as app:
        gate = app.runner.gate
        assert gate is not None
        bodies = {**BODY[path], "stream": True, "max_tokens": 900}
        async with Open(app, path, bodies, "one") as one, Open(app, path, bodies, "two") as two:
            reads = asyncio.gather(one.read(), two.read())
            while not reads.done():
                gate.allow()
                await asyncio.sleep(0.005)
            await reads
            app.runner.fail = RuntimeError("boom")
            gate.open()
            for events in await asyncio.gather(one.read_all(), two.read_all()):
                assert events[-1]["error"]["code"] == "engine_dead"
                assert all("error" not in event for event in events[:-1])
        assert (await app.get("/ready")).status == 503
        async with asyncio.timeout(5):
            assert (await app.post(path, **BODY[path])).status == 503


async def test_d65_an_idle_application_costs_nothing() -> None:
    """Idle after work: less than 1% of a processor (50 ms in 5 s; a tenth of it here)."""
    async with served() as app:
        assert (await app.post(TEXT, prompt="a")).status == 200
        await idle(app.engine)
        gc.collect()
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.005


async def test_d29_equal_prompts_of_one_request_draw_apart(tiny_llama: Path) -> None:
    """The same prompt twice in one completions request without a seed: two different answers."""
    async with real(tiny_llama) as client:
        body = {"prompt": [[5, 6]] * 3, "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
        choices = (await (await client.post(TEXT, json=body)).get_json())["choices"]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3


async def test_d23_the_server_serves_on() -> None:
    """A hundred refused requests leave nothing behind."""
    async with served(max_model_len=64) as app:
        await asyncio.gather(*(app.post(TEXT, prompt="x" * 99, max_tokens=4) for _ in range(100)))
        assert app.engine.num_requests == 0
        assert app.service._calls == {}
        assert len(joined(await app.stream(TEXT, prompt="x", max_tokens=3))) == 3
