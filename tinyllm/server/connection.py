"""`Connection`: one connection. Hypercorn speaks HTTP on it; what it leaves open is closed here.

Unlike with Hypercorn's own class, HTTP/2 without TLS is not spoken unless asked for, and a connection whose
client does not read is dropped in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from tinyllm.server.http1 import HTTP1, Either
from tinyllm.server.http2 import HTTP2
from tinyllm.server.settings import ServerConfig
from tinyllm.server.watch import Watch

__all__ = ["Connection"]

MAX_READ: Final = 1 << 14
"""Bytes that are handed on at once."""


class Connection(TCPServer):
    """One connection; awaiting it serves it."""

    def __init__(self, config: ServerConfig, *around: Any) -> None:
        super().__init__(*around)
        self._h2c = config.h2c
        self._write_timeout = config.write_timeout
        self._watch = Watch()
        self._end: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Serve it until it ends."""
        try:
            async with TaskGroup(self.loop) as tasks:
                self._task_group = tasks
                self.protocol = self._speak(tasks)
                await self.protocol.initiate()
                await self.idle_task.restart(tasks, self._idle_timeout)
                await self._read_data()
                await self.idle_task.stop()  # or a client that has gone is waited for as if it were idle
        except* OSError:  # the client is gone
            pass
        finally:
            await self._close()
            self._watch.close()
            if self._end is not None:
                self._end.cancel()

    async def _read_data(self) -> None:
        """Hand on what the client sends, in pieces that leave other connections their turn.

        What has arrived already is read without waiting, and small frames are work.
        """
        while not (self.reader.at_eof() or self.writer.is_closing()):
            try:
                data = await self.reader.read(MAX_READ)
            except OSError:
                break
            await self.protocol.handle(RawData(data))
            await asyncio.sleep(0)
        await self.protocol.handle(Closed())

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol says. Bytes that stay unread for too long are the last.

        `Guard` sees to that for responses; but a client can also be owed the protocol's own words.
        """
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            return
        async with self.send_lock:
            with self._watch(self._write_timeout, self.writer.transport.abort):
                try:
                    if self.writer.is_closing():  # TLS cannot even be asked any more
                        raise ConnectionResetError
                    self.writer.write(event.data)
                    await self.writer.drain()
                except (ConnectionError, RuntimeError):
                    await self.protocol.handle(Closed())

    def _speak(self, tasks: TaskGroup) -> Any:
        """Return the protocol that was agreed on, which without TLS is HTTP/1.1."""
        tls = self.writer.get_extra_info("ssl_object")
        sock = self.writer.get_extra_info("socket")
        client = parse_socket_addr(sock.family, self.writer.get_extra_info("peername"))
        server = parse_socket_addr(sock.family, self.writer.get_extra_info("sockname"))
        state = ConnectionState(self.state)
        around = (self.app, self.config, self.context, tasks, state, tls is not None, client, server)
        if tls is None and self._h2c:
            return Either(self.reader.read, *around, self.protocol_send)
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            return HTTP2(*around, self.protocol_send)
        return HTTP1(self.reader.read, *around, self.protocol_send)

    async def _initiate_server_close(self) -> None:
        """Close an idle connection."""
        self._limit_close()
        await super()._initiate_server_close()

    async def _close(self) -> None:
        self._limit_close()
        with contextlib.suppress(OSError):  # TLS, when the client still sends
            await super()._close()

    def _limit_close(self) -> None:
        """Have the connection end after a while, also if what was written stays unread."""
        if self._end is None:
            self._end = self.loop.call_later(self._write_timeout, self.writer.transport.abort)
