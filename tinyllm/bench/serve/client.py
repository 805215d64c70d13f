"""`Client`: sends requests to an OpenAI-compatible server, and answers to their records."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tinyllm.bench.serve.answer import Answer, fail, message_of
from tinyllm.bench.serve.events import EventError
from tinyllm.bench.serve.meter import Clock, Meter
from tinyllm.bench.serve.records import RequestRecord
from tinyllm.bench.serve.samples import CHAT, COMPLETIONS, Prompt
from tinyllm.errors import ConfigError

try:
    import aiohttp
except ImportError as error:
    raise ConfigError("bench serve needs aiohttp: pip install 'tinyllm[bench]'") from error

__all__ = ["Client", "Target", "open_client"]

ENDPOINTS: Final = {COMPLETIONS: "/v1/completions", CHAT: "/v1/chat/completions"}
IDLE_SECONDS: Final = 2.0
"""A connection idle for longer is not used again: the server may be about to close it, and a request that
fails for that reason says nothing about the server."""
CONNECT_SECONDS: Final = 30.0
ASIDE_SECONDS: Final = 60.0
"""For what is asked beside the load."""


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
        answer = Answer(record, clock, meter)
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
            fail(record, "timeout", f"no whole answer within {self.target.timeout:g} s")
        except aiohttp.ClientConnectorError as error:
            fail(record, "connect", str(error.os_error))
        except (aiohttp.ClientError, OSError) as error:
            fail(record, "disconnected", str(error) or type(error).__name__)
        except (EventError, ValueError) as error:
            fail(record, "bad_stream", str(error))
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


async def _is_stream(response: aiohttp.ClientResponse, record: RequestRecord) -> bool:
    """Return whether events follow; if not, put into the record what came instead."""
    if response.status == 200 and response.content_type == "text/event-stream":
        return True
    body = await response.read()
    if response.status == 200:
        fail(record, "bad_stream", f"the answer is {response.content_type}, not text/event-stream")
        return False
    try:
        message = message_of(json.loads(body))
    except ValueError:
        message = body.decode(errors="replace")
    fail(record, f"http_{response.status}", message or response.reason or "")
    return False
