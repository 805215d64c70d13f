"""What the client makes of answers, whole and broken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.bench.serve.scripted import Reply, Script, scripted, whole
from tinyllm.bench.serve.client import Client, Target, open_client
from tinyllm.bench.serve.meter import Clock, Meter
from tinyllm.bench.serve.records import RequestRecord
from tinyllm.bench.serve.samples import CHAT, Dialogue, Prompt
from tinyllm.errors import ConfigError


def record_of(script: Script, backend: str = "openai", **target: Any) -> tuple[RequestRecord, str]:
    """Send one request to a server that answers so; return its record and the answer's text."""

    async def main() -> tuple[RequestRecord, str]:
        async with (
            scripted(script) as server,
            open_client(server.target(backend=backend, **target)) as client,
        ):
            meter = Meter()
            record = RequestRecord(0)
            ask: Mapping[str, Prompt] = Dialogue(backend).ask("hello")
            text = await client.stream(ask, 7, record, Clock(), meter)
            assert meter.in_flight == 0
            assert meter.output_chunks == len(record.chunks)
            assert record.sent is not None
            assert record.finished is not None
            assert record.finished >= record.sent
            return record, text

    return asyncio.run(main())


def test_an_answer_in_full() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        assert body["stream_options"] == {"include_usage": True}
        await whole(reply, ["one", " two", " three"])

    record, text = record_of(script)
    assert text == "one two three"
    assert record.ok
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (3, 3, 0)
    assert record.usage
    assert (record.status, record.finish_reason, record.asked_tokens) == (200, "length", 7)
    assert len(record.chunks) == 3
    assert record.first == record.chunks[0]


def test_a_role_and_an_end_are_no_output() -> None:
    received = asyncio.Event()

    async def script(body: dict[str, Any], reply: Reply) -> None:
        assert body["messages"] == [{"role": "user", "content": "hello"}]
        await reply.head()
        await reply.delta(role="assistant", content="")
        await reply.delta(reasoning_content="hm")
        await reply.delta(content="yes")
        await reply.delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])
        await reply.delta("stop")
        await reply.done()
        received.set()

    record, text = record_of(script, CHAT)
    assert received.is_set()
    assert len(record.chunks) == 3
    assert text.startswith("hmyes")
    assert record.finish_reason == "stop"


def test_without_usage_chunks_are_counted() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        for word in "abcd":
            await reply.chunk(word)
        await reply.done()

    record, _ = record_of(script)
    assert record.ok
    assert (record.output_tokens, record.usage, record.prompt_tokens) == (4, False, None)


def test_the_last_of_running_usages_counts() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        for number in (1, 2):
            usage = {"prompt_tokens": 9, "completion_tokens": number}
            await reply.chunk("ab", usage=usage)
        await reply.chunk(finish="stop", usage=None)
        await reply.done()

    record, _ = record_of(script)
    assert (record.prompt_tokens, record.output_tokens) == (9, 2)


def test_an_answer_of_no_text_is_an_answer() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        await reply.chunk(finish="stop")
        await reply.usage(3, 1)
        await reply.done()

    record, _ = record_of(script)
    assert record.ok
    assert record.first is not None


def test_chunks_cut_anywhere_and_pings_between() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        event = {"choices": [{"text": "é", "finish_reason": None}]}
        data = b": ping\r\n\r\ndata: " + json.dumps(event, ensure_ascii=False).encode() + b"\r\n\r\n"
        for byte in data:
            await reply.raw(bytes([byte]))
        await reply.chunk(finish="stop")

    record, text = record_of(script)
    assert record.ok
    assert text == "é"


async def _hang_up(body: dict[str, Any], reply: Reply) -> None:
    reply.reset()


async def _cut_short(body: dict[str, Any], reply: Reply) -> None:
    await reply.head(headers={"Transfer-Encoding": "chunked"})
    await reply.raw(b"5\r\ndata:")


async def _reset_midway(body: dict[str, Any], reply: Reply) -> None:
    await reply.head()
    await reply.chunk("one")
    reply.reset()


async def _no_end(body: dict[str, Any], reply: Reply) -> None:
    await reply.head()
    await reply.chunk("one")


async def _nothing(body: dict[str, Any], reply: Reply) -> None:
    await reply.head()
    await reply.done()


async def _error_inside(body: dict[str, Any], reply: Reply) -> None:
    await reply.head()
    await reply.chunk("one")
    await reply.event({"error": {"message": "the engine died"}})
    await reply.done()


async def _no_json(body: dict[str, Any], reply: Reply) -> None:
    await reply.head()
    await reply.raw(b"data: {oops}\n\n")


async def _no_object(body: dict[str, Any], reply: Reply) -> None:
    await reply.head()
    await reply.event([1])


async def _no_stream(body: dict[str, Any], reply: Reply) -> None:
    await reply.json({"choices": [{"text": "whole"}]})


async def _overloaded(body: dict[str, Any], reply: Reply) -> None:
    await reply.json({"error": {"message": "try later"}}, 429)


async def _plain_error(body: dict[str, Any], reply: Reply) -> None:
    await reply.head(502, "text/html")
    await reply.raw(b"<h1>Bad gateway</h1>")


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (_hang_up, "disconnected", ""),
        (_cut_short, "disconnected", ""),
        (_reset_midway, "incomplete", "finish reason"),
        (_no_end, "incomplete", "finish reason"),
        (_nothing, "incomplete", "without a chunk"),
        (_error_inside, "stream_error", "the engine died"),
        (_no_json, "bad_stream", "property name"),
        (_no_object, "bad_stream", "no JSON object"),
        (_no_stream, "bad_stream", "application/json"),
        (_overloaded, "http_429", "try later"),
        (_plain_error, "http_502", "Bad gateway"),
    ],
)
def test_each_failure_has_its_kind(script: Script, kind: str, message: str) -> None:
    record, _ = record_of(script)
    assert not record.ok
    assert record.error == kind
    assert message in (record.message or "")


def test_a_server_that_never_ends_times_out() -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        await reply.head()
        await reply.chunk("one")
        await asyncio.sleep(30)

    record, _ = record_of(script, timeout=0.2)
    assert record.error == "timeout"
    assert len(record.chunks) == 1


def test_nobody_there() -> None:
    async def main() -> RequestRecord:
        record = RequestRecord(0)
        async with open_client(Target("http://127.0.0.1:9", model="m")) as client:
            await client.stream({"prompt": "x"}, 1, record, Clock(), Meter())
        return record

    record = asyncio.run(main())
    assert (record.error, record.status) == ("connect", None)


def test_the_request_is_what_the_target_says() -> None:
    target = Target(
        "http://host:1/v1/",
        model="m",
        api_key="secret",
        extra_body={"top_p": 0.5, "max_tokens": None, "max_completion_tokens": 3},
        ignore_eos=True,
    )
    body = target.body({"prompt": "x"}, 9)
    assert target.url == "http://host:1/v1/completions"
    assert body["ignore_eos"] is True
    assert (body["top_p"], body["max_completion_tokens"]) == (0.5, 3)
    assert "max_tokens" not in body
    assert "secret" not in repr(target) + json.dumps(target.to_json())


def test_key_and_headers_are_sent() -> None:
    async def main() -> dict[str, str]:
        async def script(body: dict[str, Any], reply: Reply) -> None:
            await whole(reply, ["x"])

        async with scripted(script) as server:
            target = server.target(api_key="secret", headers={"x-team": "red"})
            async with open_client(target) as client:
                await send(client)
            return server.headers[0]

    async def send(client: Client) -> None:
        await client.stream({"prompt": "x"}, 1, RequestRecord(0), Clock(), Meter())

    headers = asyncio.run(main())
    assert headers["authorization"] == "Bearer secret"
    assert headers["x-team"] == "red"


@pytest.mark.parametrize(
    "fields", [{"base_url": "localhost:8000"}, {"base_url": "http://x", "backend": "grpc"}]
)
def test_a_wrong_target_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Target(**fields)
