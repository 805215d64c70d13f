"""`Listener`: takes connections. Hypercorn speaks HTTP on them; what it leaves open is closed here.

Unlike with Hypercorn's own loop, the sockets stay open while the server drains, so that clients are told why
they are refused; HTTP/2 without TLS is not spoken unless asked for; connections are counted, from their first
moment; and a connection whose client does not read is dropped in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any, Final

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.task_group import TaskGroup
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.typing import ASGIFramework, ConnectionState, LifespanState
from hypercorn.utils import parse_socket_addr

from tinyllm.artifacts.files import read_option_file
from tinyllm.errors import ConfigError
from tinyllm.server.http1 import HTTP1, Either
from tinyllm.server.http2 import HTTP2
from tinyllm.server.refusal import refuse
from tinyllm.server.settings import ServerConfig
from tinyllm.server.watch import Watch

__all__ = ["Listener", "hypercorn_config"]

BACKLOG: Final = 256
MAX_READ: Final = 1 << 14
MAX_BODY_MESSAGES: Final = 16
MAX_REQUESTS_PER_CONNECTION: Final = 10_000
MAX_STREAMS: Final = 128
"""Requests at once on one HTTP/2 connection."""


def hypercorn_config(config: ServerConfig) -> Config:
    """Return Hypercorn's configuration, in which nothing that matters is left to its defaults."""
    own = Config()
    host = f"[{config.host}]" if ":" in config.host else config.host
    own.bind = [f"{host}:{config.port}"]
    own.certfile = None if config.ssl_certfile is None else str(config.ssl_certfile)
    own.keyfile = None if config.ssl_keyfile is None else str(config.ssl_keyfile)
    own.alpn_protocols = ["h2", "http/1.1"]
    own.include_server_header = False
    own.keep_alive_timeout = config.keep_alive_timeout
    own.keep_alive_max_requests = MAX_REQUESTS_PER_CONNECTION
    own.read_timeout = None  # it would also end a connection that waits for its answer; bodies have a limit
    own.max_app_queue_size = MAX_BODY_MESSAGES
    own.h11_max_incomplete_size = config.max_header_bytes + config.max_url_bytes
    own.h2_max_concurrent_streams = MAX_STREAMS
    own.h2_max_header_list_size = config.max_header_bytes
    own.backlog = BACKLOG
    own.accesslog = None
    own.errorlog = logging.getLogger("tinyllm.http")
    return own


class Listener:
    """The sockets of a server, and the connections on them."""

    def __init__(self, app: ASGIFramework, config: ServerConfig) -> None:
        self._app = ASGIWrapper(app)
        self._config = config
        self._hypercorn = hypercorn_config(config)
        self._context = WorkerContext(None)
        self._sockets: list[socket.socket] = []
        self._tls: ssl.SSLContext | None = None
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[Any]] = set()

    def bind(self) -> None:
        """Take the addresses and read the TLS files; connections wait until `open`.

        Raises `ConfigError` if an address cannot be had or a file is no good.
        """
        self._tls = self._read_tls()
        try:
            sockets = self._hypercorn.create_sockets()
            self._sockets = [*sockets.secure_sockets, *sockets.insecure_sockets]
            for each in self._sockets:
                each.listen(BACKLOG)
        except (OSError, ValueError) as error:  # ValueError: what cannot be the name of a host
            where = f"{self._config.host} port {self._config.port}"
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {where}: {reason}") from None

    def _read_tls(self) -> ssl.SSLContext | None:
        for file in (self._config.ssl_certfile, self._config.ssl_keyfile):
            if file is not None:
                read_option_file(file, "the TLS file")
        try:
            return self._hypercorn.create_ssl_context()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise ConfigError(f"ssl_certfile and ssl_keyfile cannot be used: {reason}") from None

    async def open(self) -> list[str]:
        """Begin to take connections on what was bound, and return the URLs."""
        scheme = "http" if self._tls is None else "https"
        for each in self._sockets:
            server = await asyncio.start_server(self._connect, sock=each, backlog=BACKLOG)
            self._servers.append(server)
        return [f"{scheme}://{_name(server.sockets[0])}" for server in self._servers]

    async def close(self, grace: float) -> None:
        """Stop listening, and give connections ``grace`` seconds to end by themselves."""
        for server in self._servers:
            server.close()
        await self._context.terminated.set()  # idle connections end now, others after their response
        if self._connections:
            await asyncio.wait(self._connections, timeout=grace)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  asyncio runs this in a task of its own
        if len(self._connections) >= self._config.max_connections:
            _turn_away(writer, secure=self._tls is not None)
            return
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        if await self._secure(writer):
            around = (self._app, asyncio.get_running_loop(), self._hypercorn, self._context, LifespanState())
            await _Connection(self._config, *around, reader, writer)

    async def _secure(self, writer: asyncio.StreamWriter) -> bool:
        """Agree on TLS, if that is spoken here; returns whether the client did.

        Not by asyncio before `_connect`: clients that never finish would be neither counted nor hurried.
        """
        if self._tls is None:
            return True
        try:
            await writer.start_tls(self._tls, ssl_handshake_timeout=self._config.keep_alive_timeout)
        except OSError:  # as ssl.SSLError is
            writer.transport.abort()
            return False
        return True


class _Connection(TCPServer):
    """One connection."""

    def __init__(self, config: ServerConfig, *around: Any) -> None:
        super().__init__(*around)
        self._h2c = config.h2c
        self._write_timeout = config.write_timeout
        self._watch = Watch()
        self._end: asyncio.TimerHandle | None = None

    async def run(self) -> None:
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


def _turn_away(writer: asyncio.StreamWriter, *, secure: bool) -> None:
    """Say that there is no room; not over TLS, which would have to be agreed on first."""
    if secure:
        writer.transport.abort()
        return
    refusal = refuse(503)
    lines = [b"HTTP/1.1 503 Service Unavailable", b"connection: close"]
    lines += [name + b": " + value for name, value in refusal.headers]
    writer.write(b"\r\n".join([*lines, b"", refusal.body]))
    writer.close()


def _name(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
