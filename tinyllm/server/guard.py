"""`Guard`: the door. An ASGI layer around the whole application, so that nothing is reached past it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from tinyllm.server.checks import (
    check_caller,
    check_framing,
    check_host,
    check_origin,
    check_sizes,
    cors_headers,
    preflight,
)
from tinyllm.server.context import SCOPE_KEY, Call, make_request_id
from tinyllm.server.errors import RefusedError, error_bytes
from tinyllm.server.http_metrics import HTTPMetrics
from tinyllm.server.keys import Caller, KeyRing
from tinyllm.server.settings import ServerConfig
from tinyllm.server.watch import Watch

__all__ = ["Guard"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

access_logger = logging.getLogger("tinyllm.access")
logger = logging.getLogger("tinyllm.server")

QUIET_PATHS: Final = frozenset({"/health", "/live", "/ready", "/metrics"})
"""Left out of the access log: machines ask for these all day."""

SAFE_HEADERS: Final = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Checks each request before the application sees it, and dresses each response.

    It also ends whatever a request started, when that request ends: this is the one place where a client that
    goes away, at any moment, stops its work.
    """

    def __init__(
        self, application: Application, config: ServerConfig, keys: KeyRing, metrics: HTTPMetrics
    ) -> None:
        self._application = application
        self._config = config
        self._keys = keys
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of ASGI."""
        if scope["type"] == "http":
            await self._handle(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._application(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin1").lower(): value.decode("latin1") for name, value in scope["headers"]}
        call = Call(make_request_id(headers.get("x-request-id")), Caller(""))
        reply = _Reply(send, call, self._config.write_timeout)
        scope[SCOPE_KEY] = call
        scope["path"] = normal_path(scope["path"], self._config.root_path)
        try:
            if await self._admit(scope, headers, call, reply):
                await self._application(scope, receive, reply)
        except RefusedError as refusal:
            await reply.refuse(refusal)
        finally:
            call.close()
            reply.close()
            seconds = time.monotonic() - call.started
            self._metrics.record(call.handler, scope["method"], reply.status, seconds)
            self._log(scope, call, reply, seconds)

    async def _admit(self, scope: Scope, headers: dict[str, str], call: Call, reply: _Reply) -> bool:
        """Run the checks. False if the answer has been sent already."""
        config = self._config
        check_framing(scope, headers, config)
        check_sizes(scope, config)
        check_host(headers, config)
        check_origin(scope, headers, config)
        reply.headers |= cors_headers(headers, config)
        if (answer := preflight(scope, headers)) is not None:
            await reply.send_all(204, answer, b"")
            return False
        call.caller = check_caller(scope, headers, config, self._keys)
        return True

    def _log(self, scope: Scope, call: Call, reply: _Reply, seconds: float) -> None:
        if not self._config.access_log or scope["path"] in QUIET_PATHS:
            return
        access_logger.info(
            "%s %s %s",
            scope["method"],
            _printable(scope["raw_path"]),
            reply.status or "gone",
            extra={
                "request_id": call.request_id,
                "caller": call.caller.name,
                "seconds": round(seconds, 4),
                "bytes": reply.bytes,
            },
        )


class _Reply:
    """The way out: adds headers, counts, and gives up on a client that does not read."""

    def __init__(self, send: Send, call: Call, write_timeout: float) -> None:
        self._send = send
        self._call = call
        self._write_timeout = write_timeout
        self._watch = Watch()
        self.headers: dict[str, str] = {}
        self.status = 0
        self.bytes = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = self._dress(message["headers"])
        elif message["type"] == "http.response.body":
            self.bytes += len(message.get("body", b""))
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  or nobody could await this
        with self._watch(self._write_timeout, task.cancel):
            try:
                await self._send(message)
            except asyncio.CancelledError:
                if self._watch.rang:
                    logger.warning(
                        "request %s: the client does not read; it is cut off", self._call.request_id
                    )
                raise

    def close(self) -> None:
        """Nothing more is sent."""
        self._watch.close()

    async def send_all(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Send a whole response."""
        self.headers |= headers
        length = [(b"content-length", str(len(body)).encode())] if status != 204 else []
        await self({"type": "http.response.start", "status": status, "headers": length})
        await self({"type": "http.response.body", "body": body, "more_body": False})

    async def refuse(self, refusal: RefusedError) -> None:
        """Send an error instead of what was asked for."""
        headers = {"content-type": "application/json", **refusal.fault.headers}
        await self.send_all(refusal.fault.status, headers, error_bytes(refusal.fault))

    def _dress(self, given: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Add our headers to those of the response; the response's own win."""
        ours = SAFE_HEADERS | self.headers | {"x-request-id": self._call.request_id}
        if self._call.ignored_fields:
            ours["x-tinyllm-ignored-fields"] = ", ".join(self._call.ignored_fields)
        if "access-control-allow-origin" in ours:
            ours["cross-origin-resource-policy"] = "cross-origin"
        present = {name.lower() for name, _ in given}
        encoded = ((name.encode(), value.encode("latin1", "replace")) for name, value in ours.items())
        return [*given, *((name, value) for name, value in encoded if name not in present)]


def normal_path(path: str, root_path: str = "") -> str:
    """Return the path with single slashes and none at the end: clients join base URLs carelessly.

    Some proxies cut off the path that they show a server under, and some do not; both are understood.
    """
    path = re.sub(r"/{2,}", "/", f"/{path}/")
    if path.startswith(f"{root_path}/"):
        path = path.removeprefix(root_path)
    return path.rstrip("/") or "/"


def _printable(raw_path: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in raw_path[:200].decode("latin1"))
