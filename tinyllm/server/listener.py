"""`Listener`: takes connections.

Unlike with Hypercorn's own loop, the sockets stay open while the server drains, so that clients are told why
they are refused, and connections are counted, from their first moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from typing import Any, Final

from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.asyncio.worker_context import WorkerContext
from hypercorn.config import Config
from hypercorn.typing import ASGIFramework, LifespanState

from tinyllm.artifacts.files import read_option_file
from tinyllm.errors import ConfigError
from tinyllm.server.connection import Connection
from tinyllm.server.refusal import refuse
from tinyllm.server.settings import ServerConfig

__all__ = ["Listener", "hypercorn_config"]

BACKLOG: Final = 256
SPARE_FILES: Final = 128
"""What a process has open beside its connections."""
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
        _make_room(self._config.max_connections + SPARE_FILES)
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
            await Connection(self._config, *around, reader, writer)

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


def _make_room(files: int) -> None:
    """Raise the process' own limit of open files, which on some systems is below that of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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
