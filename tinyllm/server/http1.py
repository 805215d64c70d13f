"""`HTTP1`: Hypercorn's HTTP/1.1, which answers what is no request, and sees its client go at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import h11
from hypercorn.asyncio.tcp_server import MAX_RECV
from hypercorn.asyncio.worker_context import EventWrapper
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol.h11 import H2ProtocolAssumedError, H11Protocol

from tinyllm.server.context import SCOPE_KEY, Call
from tinyllm.server.http2 import HTTP2
from tinyllm.server.refusal import refuse

__all__ = ["HTTP1", "Either"]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\n"
"""What HTTP/2 begins with looks like a request of HTTP/1."""

MAX_AHEAD: Final = 1 << 20
"""Bytes that a client may send beyond the request that is being answered."""

Read = Callable[[int], Awaitable[bytes]]


class _OtherProtocolError(Exception):
    """The client wants to speak something else."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _GoneError(Exception):
    """The client has gone, or sends more than anybody needs to."""


class HTTP1(H11Protocol):
    """HTTP/1.1 on one connection. An offer to go on with HTTP/2 is ignored, as it may be."""

    _method = b""

    def __init__(self, read: Read, *around: Any) -> None:
        super().__init__(*around)
        self._read = read
        self.can_read = _Answered(self._read_ahead)

    async def handle(self, event: Event) -> None:
        """Take bytes, or the end of the connection."""
        try:
            await super().handle(event)
        except _OtherProtocolError as refusal:
            await self._send_error_response(refusal.status)
            await self.send(Closed())
        except _GoneError:
            await super().handle(Closed())
            await self.send(Closed())

    async def _read_ahead(self) -> None:
        """Take what comes after the request that is being answered; returns when the client has gone."""
        ahead = 0
        while ahead < MAX_AHEAD and (data := await self._read(MAX_RECV)):
            self.connection.receive_data(data)
            ahead += len(data)

    async def _check_protocol(self, event: h11.Request) -> None:
        self._method = event.method
        if event.method == b"PRI":  # HTTP/2 from the start
            raise _OtherProtocolError(505)
        for name, value in event.headers:
            if name == b"upgrade" and value.strip().lower() == b"websocket":
                raise _OtherProtocolError(403)

    async def _send_error_response(self, status_code: int) -> None:
        """Answer what is no request, or whose body is no body; Hypercorn's own answer has no body."""
        is_head = self.connection.our_state is h11.SEND_RESPONSE and self._method == b"HEAD"
        refusal = refuse(status_code, self._request_id())
        headers = [*refusal.headers, (b"connection", b"close")]
        await self._send_h11_event(h11.Response(status_code=refusal.status, headers=headers))
        if not is_head:
            await self._send_h11_event(h11.Data(data=refusal.body))
        await self._send_h11_event(h11.EndOfMessage())

    def _request_id(self) -> str | None:
        """Return the id of the request that was going on; None if there was none."""
        call: Call | None = getattr(self.stream, "scope", {}).get(SCOPE_KEY)
        return None if call is None else call.request_id


class _Answered(EventWrapper):
    """Set when a request has been answered. Hypercorn waits for it when the next request is there already.

    It reads nothing meanwhile, so a client that goes away would not be noticed before the end of the answer.
    """

    def __init__(self, read_ahead: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._read_ahead = read_ahead

    async def wait(self) -> None:
        """Wait for the answer. Raises `_GoneError` if the client goes first."""
        waits = [asyncio.ensure_future(wait) for wait in (super().wait(), self._read_ahead())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not self.is_set():
            raise _GoneError


class _HTTP1Until2(HTTP1):
    """HTTP/1.1, until the client turns out to speak HTTP/2."""

    async def _check_protocol(self, event: h11.Request) -> None:
        if event.method == b"PRI" and event.http_version == b"2.0":
            raise H2ProtocolAssumedError(PREFACE + self.connection.trailing_data[0])
        await super()._check_protocol(event)


class Either:
    """HTTP/1.1 without TLS, or HTTP/2 if the client speaks that from the start."""

    def __init__(self, read: Read, *around: Any) -> None:
        self._around = around
        self._protocol: HTTP1 | HTTP2 = _HTTP1Until2(read, *around)

    async def initiate(self) -> None:
        """Begin."""
        await self._protocol.initiate()

    async def handle(self, event: Event) -> None:
        """Take bytes, or the end of the connection."""
        try:
            await self._protocol.handle(event)
        except H2ProtocolAssumedError as start:
            self._protocol = HTTP2(*self._around)
            await self._protocol.initiate()
            await self._protocol.handle(RawData(data=start.data))
