"""`EngineLifecycle`: an engine's life on an event loop, from loading to the last word of every stream."""

from __future__ import annotations

import math
import sys
import time
import warnings
import weakref
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

import anyio

from tinyllm.config import EngineConfig
from tinyllm.engine.bridge import Bridge
from tinyllm.engine.executor import CLOSE_TIMEOUT, Abort, Build, Executor, builder
from tinyllm.engine.loaded import LoadedModel
from tinyllm.engine.messages import Delivery
from tinyllm.engine.stream_table import StreamTable
from tinyllm.engine.worker import TextWorker
from tinyllm.errors import (
    ConfigError,
    EngineClosedError,
    EngineDeadError,
    RequestAbortedError,
    TinyLLMError,
)

__all__ = ["EngineLifecycle", "EngineStatus"]


class EngineStatus(StrEnum):
    """Where an engine is in its life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSED = "closed"
    DEAD = "dead"
    """A step failed, or the model could not be loaded; `AsyncEngine.cause` says why."""


class EngineLifecycle:
    """Owns the executor thread and the table of accepted requests; `AsyncEngine` adds how they come in."""

    def __init__(
        self, config: EngineConfig | None = None, *, _build: Build | None = None, **options: Any
    ) -> None:
        self._status = EngineStatus.NEW
        self.config = EngineConfig.combine(config, options)
        self.cause: BaseException | None = None
        """Why the engine is dead, if it is."""
        self._model: LoadedModel | None = None
        self._table = StreamTable(self.config)
        self._worker = TextWorker()
        self._waiting_texts = 0
        self._outbox = _LoopOutbox(self)
        self._executor = Executor(builder(self.config, _build), self._outbox)
        self._ended = anyio.Event()
        # Made by `start`, on the event loop they belong to; `_ended` again.
        self._bridge: Bridge
        self._loaded: anyio.Event

    # Life.

    async def start(self) -> None:
        """Load the model; returns when requests are taken.

        Raises what is wrong with the model (`ArtifactError`, `DeviceError`, `ConfigError`), and
        `EngineClosedError` if the engine was started before: it cannot be used twice.
        """
        if self._status is not EngineStatus.NEW:
            raise EngineClosedError(f"this engine is {self._status} already; make a new one")
        self._status = EngineStatus.STARTING
        self._bridge = self._outbox.bridge = Bridge()
        self._loaded, self._ended = anyio.Event(), anyio.Event()
        self._executor.start()
        try:
            await self._loaded.wait()
        except BaseException:  # cancelled: loading ends after the tensor in progress
            self._shut()
            raise
        if self.cause is not None:
            raise self.cause if isinstance(self.cause, TinyLLMError) else self._dead_error()
        self._check_running()

    async def drain(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Refuse new requests, and wait until those accepted have ended.

        After ``timeout`` seconds (default: ``shutdown_timeout``; at once, if there are none left) the rest is
        aborted. Returns whether all ended by themselves. Raises `ConfigError` if ``timeout`` is no number.
        """
        timeout = self.config.shutdown_timeout if timeout is None else timeout
        if not isinstance(timeout, (int, float)) or not -math.inf <= timeout <= math.inf:  # False for NaN
            raise ConfigError("drain: timeout must be a number of seconds")
        if self._status is EngineStatus.RUNNING:
            self._status = EngineStatus.DRAINING
        with anyio.move_on_after(min(max(timeout, 0), sys.float_info.max)):
            await self._table.wait_empty()
        left = self._table.ids()
        for request_id in left:
            self.abort(request_id)
        with anyio.move_on_after(CLOSE_TIMEOUT):
            await self._table.wait_empty()
        return not left

    async def aclose(self) -> None:
        """End every request with `RequestAbortedError`, and free the model. May be called again.

        To let requests finish first, `drain`. Waits for the step in progress, also when cancelled. An engine
        whose event loop is gone can be closed from another.
        """
        self._shut()
        if not self._executor.was_started:
            self._ended.set()
            return
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            if self._bridge.is_here():
                await self._ended.wait()
            else:
                await anyio.to_thread.run_sync(self._executor.join, CLOSE_TIMEOUT)
        if not self._executor.join(timeout=0.5):  # a step hangs, and cannot be interrupted
            self._table.end_all(lambda: RequestAbortedError("the engine was closed"))
        elif self._bridge.is_closed():  # where the executor thread's last word does not arrive
            self._take_ended(self.cause)

    async def wait_ended(self) -> BaseException | None:
        """Wait until the engine is closed or dead, and return `cause`: why it died, or None.

        Raises `EngineClosedError` if it was never started.
        """
        if self._status is EngineStatus.NEW:
            raise EngineClosedError("the engine is not started: use 'async with', or await start() first")
        await self._ended.wait()
        return self.cause

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # May run on any thread: both calls only leave a word for the threads.
        if self._status in (EngineStatus.STARTING, EngineStatus.RUNNING, EngineStatus.DRAINING):
            self._shut()
            warnings.warn("an AsyncEngine was not closed; use 'async with'", ResourceWarning, stacklevel=1)

    def _shut(self) -> None:
        self._executor.stop()
        self._worker.stop()
        if self._status is not EngineStatus.DEAD:
            self._status = EngineStatus.CLOSED

    # Accepted requests.

    @property
    def num_requests(self) -> int:
        """Requests accepted and not ended; ``n`` answers count once."""
        return len(self._table)

    def abort(self, request_id: str) -> bool:
        """End a request, whatever it is doing; its stream raises `RequestAbortedError`.

        Returns whether there is such a request. Called again, it changes nothing.
        """
        request = self._table.get(request_id)
        if request is None:
            return False
        if not request.is_submitted:
            self._table.end(request, RequestAbortedError("the request was aborted"))
            self._loaded_model().metrics.record_cancelled("queued")
        elif not request.is_aborting:
            request.is_aborting = True
            self._executor.mailbox.put(Abort(request_id))
        return True

    # State.

    @property
    def status(self) -> EngineStatus:
        """Where the engine is in its life."""
        return self._status

    def _loaded_model(self) -> LoadedModel:
        if self._model is None:
            raise EngineClosedError("the engine is not started: use 'async with', or await start() first")
        return self._model

    def _check_running(self) -> LoadedModel:
        """Return the model, or raise why no request can be taken."""
        match self._status:
            case EngineStatus.RUNNING:
                if not self._bridge.is_here():
                    raise EngineClosedError(
                        "this engine belongs to another event loop: start one in this loop"
                    )
                return self._loaded_model()
            case EngineStatus.DEAD:
                raise self._dead_error()
            case EngineStatus.NEW | EngineStatus.STARTING:
                raise EngineClosedError("the engine is not started: use 'async with', or await start() first")
            case _:
                raise EngineClosedError(f"the engine is {self._status} and takes no new requests")

    def _dead_error(self) -> EngineDeadError:
        error = EngineDeadError(
            f"the engine died of {type(self.cause).__name__}; it does not come back: start a new one"
        )
        error.__cause__ = self.cause
        return error

    # Posted by the executor thread.

    def _take_started(self, model: LoadedModel) -> None:
        self._model = model
        if self._status is EngineStatus.STARTING:
            self._status = EngineStatus.RUNNING
        self._loaded.set()

    def _take_deliveries(self, deliveries: list[Delivery], posted: float) -> None:
        self._loaded_model().metrics.record_loop_lag(time.monotonic() - posted)
        self._table.deliver(deliveries)

    def _take_ended(self, cause: BaseException | None) -> None:
        if cause is not None:
            self.cause = cause
            self._status = EngineStatus.DEAD
            self._table.end_all(self._dead_error)
        else:
            self._status = EngineStatus.CLOSED
            self._table.end_all(lambda: RequestAbortedError("the engine was closed"))
        self._loaded.set()
        self._ended.set()


class _LoopOutbox:
    """Posts what the executor thread has to say to an engine, without keeping the engine alive."""

    bridge: Bridge
    """Set before the thread starts."""

    def __init__(self, engine: EngineLifecycle) -> None:
        self._engine = weakref.ref(engine)

    def started(self, model: LoadedModel) -> bool:
        return self.bridge.post(self._tell, EngineLifecycle._take_started, model)

    def deliver(self, deliveries: list[Delivery]) -> bool:
        return self.bridge.post(self._tell, EngineLifecycle._take_deliveries, deliveries, time.monotonic())

    def ended(self, cause: BaseException | None) -> bool:
        return self.bridge.post(self._tell, EngineLifecycle._take_ended, cause)

    def _tell(self, method: Callable[..., None], *args: object) -> None:
        engine = self._engine()
        if engine is not None:
            method(engine, *args)
