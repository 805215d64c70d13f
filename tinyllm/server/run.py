"""`run_server`: the life of a serving process, from the first load to its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, NoReturn

from quart import Quart

from tinyllm.errors import EngineDeadError, TinyLLMError
from tinyllm.server.app import create_app
from tinyllm.server.listener import Listener
from tinyllm.server.logs import LoopFaults
from tinyllm.server.posture import check_posture, describe_posture
from tinyllm.server.service import Service
from tinyllm.server.settings import ServerConfig
from tinyllm.server.signals import ending_signals

if TYPE_CHECKING:
    from tinyllm.engine.async_engine import AsyncEngine

__all__ = ["EXIT_FAULT", "EXIT_OK", "EXIT_USAGE", "end_process", "exit_code_of", "run_server"]

logger = logging.getLogger("tinyllm.server")

EXIT_OK: Final = 0
"""A signal ended it."""
EXIT_FAULT: Final = 1
"""The engine died, or the server itself failed: start it again."""
EXIT_USAGE: Final = 2
"""The model or an option is no good: starting it again will not help."""

LAST_WORDS: Final = 1.0
"""Seconds that responses have to end when the engine is gone."""
PATIENCE: Final = 0.5
"""Seconds that are waited for what should take none, such as an engine whose step hangs."""


async def run_server(config: ServerConfig, engine: AsyncEngine | None = None) -> int:
    """Serve until a signal or a fault, and return the exit code. ``engine`` is as for `create_app`.

    SIGINT, SIGTERM or SIGHUP (a terminal that was closed) drains: work that runs may finish, new work is
    refused. A second one ends all at once.
    Raises `ConfigError`, before the model is touched, if options, addresses or TLS files are no good.
    """
    check_posture(config)
    app = create_app(config, engine)
    service: Service = app.extensions["tinyllm"]
    listener = Listener(app, config)
    listener.bind()
    asyncio.get_running_loop().set_exception_handler(LoopFaults())
    with _Signals() as signals:
        await app.startup()
        urls = await listener.open()
        logger.info("listening on %s: %s", " and ".join(urls), describe_posture(config))
        code = await _until_end(service, signals)
        await _finish(app, service, listener)
    return code


async def _until_end(service: Service, signals: _Signals) -> int:
    """Wait for the end, let work finish if there is time for that, and return the exit code."""
    await _first(signals.first.wait(), service.wait_failed())
    if service.fault is None:
        logger.info(
            "draining: no new work; running requests have %g seconds", service.config.shutdown_timeout
        )
        service.begin_drain()
        limit = asyncio.sleep(service.config.shutdown_timeout + PATIENCE)
        await _first(service.drain(), limit, signals.second.wait(), service.wait_failed())
    return EXIT_OK if service.fault is None else exit_code_of(service.fault)


async def _finish(app: Quart, service: Service, listener: Listener) -> None:
    """End what is left. Nothing here may keep the process alive for long."""
    await _first(service.stop(), asyncio.sleep(PATIENCE))
    await listener.close(LAST_WORDS)
    await _first(app.shutdown(), asyncio.sleep(PATIENCE))


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for one of several things, and let go of the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=PATIENCE)


def end_process(code: int) -> NoReturn:
    """Leave now: threads that still load or compute would hold up the interpreter, or fail as it goes."""
    logging.shutdown()
    os._exit(code)


def exit_code_of(fault: BaseException) -> int:
    """Return what a process should say that ends because of ``fault``."""
    is_known = isinstance(fault, TinyLLMError) and not isinstance(fault, EngineDeadError)
    return EXIT_USAGE if is_known else EXIT_FAULT


class _Signals:
    """Counts signals that mean the end, of whatever kind. From the third on, they kill."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._numbers = ending_signals()

    def __enter__(self) -> _Signals:
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _take(self) -> None:
        if not self.first.is_set():
            self.first.set()
        elif not self.second.is_set():
            self.second.set()
        else:
            os._exit(EXIT_FAULT)
