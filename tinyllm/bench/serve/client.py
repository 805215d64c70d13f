"""`Client`: sends requests to an OpenAI-compatible server and writes down when each chunk came.

It shares its cores with the server it measures, so per chunk there is one split, one `json.loads`, and a
few dictionary look-ups.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tinyllm.bench.serve.events import DONE, EventError, EventParser
from tinyllm.bench.serve.records import RequestRecord
from tinyllm.bench.serve.samples import CHAT, COMPLETIONS, Prompt
from tinyllm.errors import ConfigError

try:
    import aiohttp
except ImportError as error:
    raise ConfigError("bench serve needs aiohttp: pip install 'tinyllm[bench]'") from error

__all__ = ["Client", "Clock", "Meter", "Target", "open_client"]

ENDPOINTS: Final = {COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions"}
IDLE_SECONDS: Final = 2.0
"""A connection idle for longer is not used again: the server may be about to close it, and a request that
fails for that reason says nothing about the server."""
CONNECT_SECONDS: Final = 30.0
ASIDE_SECONDS: Final = 60.0
"""For what is asked beside the load."""
MESSAGE_LENGTH: Final = 300


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and what every request to it has in common. Raises `ConfigError` for a wrong URL."""

    base_url: str
    backend: str = COMPLETIONS
    model: str = ""
    endpoint: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request; null takes a field away."""
    ignore_eos: bool = False
    temperature: float = 0.0
    timeout: float = 600.0
    """Seconds after which a request has failed."""

    def __post_init__(self) -> None:
        if not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"--base-url must begin with http:// or https:// (got {self.base_url[:80]!r})")
        if self.backend not in ENDPOINTS:
            raise ConfigError(f"--backend: {self.backend!r} is unknown; use {', '.join(ENDPOINTS)}")

    @property
    def root(self) -> str:
        """The URL without a path."""
        return self.base_url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def url(self) -> str:
        """Where requests go."""
        return self.root + (self.endpoint or ENDPOINTS[self.backend])

    def body(self, ask: Mapping[str, Prompt], max_tokens: int) -> dict[str, Any]:
        """Return the JSON of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            **ask,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        return {key: value for key, value in (body | dict(self.extra_body)).items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """Return what a result file says of it: no key, and of headers only the names."""
        return {
            "backend": self.backend,
            "base_url": self.base_url,
            "endpoint": self.endpoint or ENDPOINTS[self.backend],
            "model": self.model,
            "headers": sorted(self.headers),
            "extra_body": dict(self.extra_body),
            "ignore_eos": self.ignore_eos,
            "temperature": self.temperature,
            "timeout": self.timeout,
        }


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter() - self._start

    async def until(self, moment: float) -> None:
        """Return at ``moment``, or at once if it has passed."""
        await asyncio.sleep(max(0.0, moment - self.now()))


@dataclass(slots=True)
class Meter:
    """What the client sees at this moment."""

    in_flight: int = 0
    output_chunks: int = 0


class Client:
    """Requests to one server over one pool of connections."""

    def __init__(self, target: Target, session: aiohttp.ClientSession) -> None:
        self.target = target
        self._session = session

    async def stream(
        self, ask: Mapping[str, Prompt], max_tokens: int, record: RequestRecord, clock: Clock, meter: Meter
    ) -> str:
        """Send a request, fill in its record, and return the answer's text. Never raises for a failure."""
        data = json.dumps(self.target.body(ask, max_tokens)).encode()
        answer = _Answer(record, clock, meter)
        record.asked_tokens = max_tokens
        record.sent = clock.now()
        meter.in_flight += 1
        try:
            async with self._session.post(self.target.url, data=data) as response:
                record.status = response.status
                if await _is_stream(response, record):
                    async for received in response.content.iter_any():
                        answer.receive(received)
                    answer.end()
        except TimeoutError:
            _fail(record, "timeout", f"no whole answer within {self.target.timeout:g} s")
        except aiohttp.ClientConnectorError as error:
            _fail(record, "connect", str(error.os_error))
        except (aiohttp.ClientError, OSError) as error:
            _fail(record, "disconnected", str(error) or type(error).__name__)
        except (EventError, ValueError) as error:
            _fail(record, "bad_stream", str(error))
        finally:
            meter.in_flight -= 1
        if record.error is not None or record.finished is None:
            record.finished = clock.now()
        return "".join(answer.text)

    async def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body of a GET. Raises `OSError` or `TimeoutError` if there is no answer."""
        return await self._exchange("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return status and body of a POST. Raises as `get` does."""
        return await self._exchange("POST", path, json.dumps(body).encode())

    async def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        limit = aiohttp.ClientTimeout(total=ASIDE_SECONDS)
        try:
            async with self._session.request(
                method, self.target.root + path, data=data, timeout=limit
            ) as answer:
                return answer.status, await answer.read()
        except aiohttp.ClientError as error:
            raise OSError(str(error) or type(error).__name__) from error


@asynccontextmanager
async def open_client(target: Target) -> AsyncIterator[Client]:
    """Open a pool of connections, as many as it takes."""
    headers = {"Content-Type": "application/json", **target.headers}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=target.timeout, sock_connect=CONNECT_SECONDS),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield Client(target, session)


class _Answer:
    """An answer as it comes in."""

    def __init__(self, record: RequestRecord, clock: Clock, meter: Meter) -> None:
        self.text: list[str] = []
        self._record, self._clock, self._meter = record, clock, meter
        self._parser = EventParser()
        self._first_chunk: float | None = None
        self._done = False

    def receive(self, received: bytes) -> None:
        now = self._clock.now()
        for data in self._parser.feed(received):
            if data == DONE:
                self._done = True
            else:
                self._chunk(json.loads(data), now)

    def end(self) -> None:
        """Check that all has come, and complete the record."""
        record = self._record
        if record.first is None:
            record.first = self._first_chunk
        if record.output_tokens is None:
            record.output_tokens = len(record.chunks)
        if record.error is None and not self._done and record.finish_reason is None:
            _fail(record, "incomplete", "the stream ended without a finish reason and without [DONE]")
        elif record.error is None and record.first is None:
            _fail(record, "incomplete", "the stream ended without a chunk")

    def _chunk(self, chunk: Any, now: float) -> None:
        if not isinstance(chunk, dict):
            raise EventError("a chunk is no JSON object")
        if chunk.get("error"):
            _fail(self._record, "stream_error", _message_of(chunk))
        if choices := chunk.get("choices"):
            self._choice(choices[0], now)
        if usage := chunk.get("usage"):
            self._usage(usage)

    def _choice(self, choice: Mapping[str, Any], now: float) -> None:
        record = self._record
        if self._first_chunk is None:
            self._first_chunk = now
        record.finished = now
        if text := _output_of(choice):
            if record.first is None:
                record.first = now
            record.chunks.append(now)
            self._meter.output_chunks += 1
            self.text.append(text)
        if reason := choice.get("finish_reason"):
            record.finish_reason = reason

    def _usage(self, usage: Mapping[str, Any]) -> None:
        record = self._record
        record.usage = isinstance(usage.get("completion_tokens"), int)
        record.prompt_tokens = usage.get("prompt_tokens")
        record.output_tokens = usage.get("completion_tokens")
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _output_of(choice: Mapping[str, Any]) -> str:
    """Return the output in a chunk. One that has only a role, or only a finish reason, has none."""
    if "text" in choice:
        return choice["text"] or ""
    delta = choice.get("delta") or {}
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    if text:
        return str(text)
    return json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""


async def _is_stream(response: aiohttp.ClientResponse, record: RequestRecord) -> bool:
    """Return whether events follow; if not, put into the record what came instead."""
    if response.status == 200 and response.content_type == "text/event-stream":
        return True
    body = await response.read()
    if response.status == 200:
        _fail(record, "bad_stream", f"the answer is {response.content_type}, not text/event-stream")
        return False
    try:
        message = _message_of(json.loads(body))
    except ValueError:
        message = body.decode(errors="replace")
    _fail(record, f"http_{response.status}", message or response.reason or "")
    return False


def _message_of(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json.dumps(error)
    return str(error)


def _fail(record: RequestRecord, kind: str, message: str) -> None:
    """Note a failure; the first one counts."""
    if record.error is None:
        record.error, record.message = kind, message[:MESSAGE_LENGTH]
