"""`HTTP2`: Hypercorn's HTTP/2, made to survive clients that mean harm, or are merely early or late."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import h2.events
import h2.exceptions
from h2.errors import ErrorCodes
from h2.settings import SettingCodes, Settings
from hypercorn.events import Closed
from hypercorn.protocol.events import Request
from hypercorn.protocol.h2 import (
    BUFFER_HIGH_WATER,
    BUFFER_LOW_WATER,
    BufferCompleteError,
    H2Protocol,
    StreamBuffer,
)
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.utils import filter_pseudo_headers

from tinyllm.server.refusal import refuse

__all__ = ["HTTP2"]

RESETS: Final = 100
"""Streams that a client may have reset, or make the server reset, in a row ..."""
RESETS_PER_SECOND: Final = 20
"""... and how fast it may go on. More is an attack (rapid reset): each costs the server a whole request."""


class HTTP2(H2Protocol):
    """HTTP/2 on one connection."""

    def __init__(self, *around: Any) -> None:
        super().__init__(*around)
        self.connection.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: self.config.h2_max_concurrent_streams,
                SettingCodes.MAX_HEADER_LIST_SIZE: self.config.h2_max_header_list_size,
            },
        )  # unlike Hypercorn's own these do not offer WebSockets
        self.connection.decoder.max_header_list_size = self.config.h2_max_header_list_size
        self._resets = float(RESETS)
        self._resets_at = time.monotonic()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        """Pass on what Hypercorn can handle."""
        for event in events:
            match event:
                case h2.events.StreamReset() if not self._may_reset():
                    await self._hang_up()
                    return
                case h2.events.RequestReceived() if not _is_plain(event):
                    self._refuse(event)
                case h2.events.DataReceived() if event.stream_id not in self.streams:
                    # It was answered before its body was there.
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.PriorityUpdated():
                    pass  # deprecated, and trees of priorities grow
                case _:
                    await super()._handle_events([event])
        await self._flush()

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        """Begin a request. Hypercorn's own way, but for WebSockets, and for the buffer."""
        stream_id, fields = request.stream_id, dict(request.headers)
        around = (self.app, self.config, self.context, self.task_group, self.ssl, self.client, self.server)
        stream = self.streams[stream_id] = HTTPStream(*around, self.stream_send, stream_id)
        self.stream_buffers[stream_id] = _Buffer(self.context.event_class)
        self.priority.insert_stream(stream_id)
        self.priority.block(stream_id)
        await stream.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(request.headers),
                http_version="2",
                method=fields[b":method"].decode("ascii").upper(),
                raw_path=fields[b":path"],
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()

    def _may_reset(self) -> bool:
        now = time.monotonic()
        self._resets = min(RESETS, self._resets + (now - self._resets_at) * RESETS_PER_SECOND) - 1
        self._resets_at = now
        return self._resets >= 0

    async def _hang_up(self) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):
            self.connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
        await self._flush()
        await self.handle(Closed())
        await self.send(Closed())

    async def _close_stream(self, stream_id: int) -> None:
        """Also tell the client when its answer stays unfinished, and let go of what was written for it."""
        await super()._close_stream(stream_id)
        buffer = self.stream_buffers.get(stream_id)
        if buffer is not None and not buffer.complete:
            self._reset(stream_id, ErrorCodes.CANCEL)
            await buffer.close()
            self.priority.unblock(stream_id)  # the sending task forgets it
            await self.has_data.set()
            if not self.closed:
                await self._flush()

    def _refuse(self, request: h2.events.RequestReceived) -> None:
        """Answer what is no request, if the client has room for that, and end its stream."""
        refusal, stream_id = refuse(400), request.stream_id
        headers = [(b":status", str(refusal.status).encode()), *refusal.headers]
        is_head = (b":method", b"HEAD") in (request.headers or ())
        code = ErrorCodes.NO_ERROR
        try:
            self.connection.send_headers(stream_id, headers, end_stream=is_head)
            if not is_head:
                self.connection.send_data(stream_id, refusal.body, end_stream=True)
        except h2.exceptions.ProtocolError:
            code = ErrorCodes.PROTOCOL_ERROR
        self._reset(stream_id, code)

    def _reset(self, stream_id: int, code: ErrorCodes) -> None:
        with contextlib.suppress(h2.exceptions.ProtocolError):  # closed already
            self.connection.reset_stream(stream_id, code)


class _Buffer(StreamBuffer):
    """What is written and not sent yet: full, it holds up the writer, which Hypercorn's own never does."""

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        if len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


def _is_plain(request: h2.events.RequestReceived) -> bool:
    """Whether it has what Hypercorn takes for granted: a method and a path in ASCII, and no tunnel."""
    pseudo = {name: value for name, value in request.headers or () if name.startswith(b":")}
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"")
    return bool(method and path) and method != b"CONNECT" and method.isascii() and path.isascii()
