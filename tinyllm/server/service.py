"""`Service`: the engine behind the server, from loading to the end, and the requests it is busy with."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import logging
import sys
import time
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quart import current_app

from tinyllm.errors import EngineClosedError, EngineDeadError, TinyLLMError
from tinyllm.server.context import Call
from tinyllm.server.errors import RETRY_WHILE_LOADING, RefusedError
from tinyllm.server.http_metrics import HTTPMetrics
from tinyllm.server.quota import Quotas
from tinyllm.server.reasoning import OPEN
from tinyllm.server.settings import ServerConfig

if TYPE_CHECKING:
    from tinyllm.engine.async_engine import AsyncEngine

__all__ = ["Service", "current_service"]

logger = logging.getLogger("tinyllm.server")

DEMO_MODEL: Final = "SmolLM2-135M-Instruct"
ID_PREFIXES: Final = ("chatcmpl-", "cmpl-", "resp_")
"""What bodies put before a request's id."""


SWITCH_INTERVAL: Final = 0.0005
"""Seconds that a thread may run in Python while the event loop waits. At Python's own 5 ms, which are due
several times in each answer, ``/health`` takes five times as long beside a long prompt."""


class Service:
    """Holds the engine: one of its own, or one it was given. Belongs to the loop that calls `start`."""

    def __init__(self, config: ServerConfig, engine: AsyncEngine | None = None, *, num_keys: int = 0) -> None:
        self.config = config
        self.quotas = Quotas(config, num_keys)
        self.model_names: tuple[str, ...] = config.served_model_name or (model_name(config.model),)
        """What requests may call the model; the first is its proper name."""
        self.created = int(time.time())
        self.http_metrics = HTTPMetrics()
        self.fault: BaseException | None = None
        """Why there is no engine, or no more."""
        self._given = engine
        self._owns_engine = True
        self._engine: AsyncEngine | None = None
        self._draining = False
        self._failed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._calls: dict[str, list[Call]] = {}
        self._numbers = itertools.count()

    # Life.

    async def start(self) -> None:
        """Begin to load the model, and return: a server that loads already answers, with 503."""
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._task = asyncio.create_task(self._run(), name="tinyllm-load")

    async def _run(self) -> None:
        """Load, then watch whether the engine lives."""
        try:
            engine = self._given or _make_engine(self.config)
            self._owns_engine = engine.status == "new"
            if self._owns_engine:
                await engine.start()
                _settle()
            self._engine = engine
            logger.info("ready: %s in %s on %s", self.model_names[0], engine.info.dtype, engine.info.device)
            if (cause := await engine.wait_ended()) is not None:
                logger.error("the engine died: %r", cause)
                self._fail(EngineDeadError("the engine died"))
        except TinyLLMError as error:
            logger.error("the model could not be loaded: %s", error)
            self._fail(error)
        except Exception as error:
            logger.exception("the model could not be loaded")
            self._fail(error)

    def _fail(self, fault: BaseException) -> None:
        self.fault = fault
        self._failed.set()

    async def wait_failed(self) -> BaseException:
        """Wait until the model could not be loaded or the engine died, and return why."""
        await self._failed.wait()
        assert self.fault is not None  # noqa: S101  set before the event
        return self.fault

    def begin_drain(self) -> None:
        """Take no new work from now on."""
        self._draining = True

    async def drain(self) -> bool:
        """Let running requests finish, for ``shutdown_timeout`` at most; returns whether all did."""
        self.begin_drain()
        if self._engine is None:
            return True
        seconds = self.config.shutdown_timeout
        limit = asyncio.get_running_loop().call_later(seconds, self._end_calls)
        try:
            return await self._engine.drain(seconds)
        finally:
            limit.cancel()

    async def stop(self) -> None:
        """End everything now. What is running hears of it at once, also while a step hangs."""
        self.begin_drain()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._engine is not None and self._owns_engine:
            self._end_calls()
            await self._engine.aclose()

    def _end_calls(self) -> None:
        """Tell what is running why it ends: to its client that is the server's doing, not its own."""
        for call in itertools.chain(*self._calls.values()):
            for stream in call.streams:
                stream.end(EngineClosedError("the server is shutting down"))

    # State.

    @property
    def engine(self) -> AsyncEngine:
        """The engine, ready for work. Raises `RefusedError` (503) with the reason if there is none."""
        if (refusal := self.unavailable()) is not None:
            raise refusal
        assert self._engine is not None  # noqa: S101  or it would be unavailable
        return self._engine

    @property
    def loaded_engine(self) -> AsyncEngine | None:
        """The engine, whatever state it is in; None until it is loaded."""
        return self._engine

    def unavailable(self) -> RefusedError | None:
        """Return why no work can be taken now, or None."""
        retry = {"retry-after": str(RETRY_WHILE_LOADING)}
        engine = self._engine
        if engine is not None and engine.status == "dead":
            return RefusedError(503, "engine_dead", "the engine died; the server has to be started again")
        if self.fault is not None:
            return RefusedError(
                503, "model_failed", "the model could not be loaded; the server's log says why"
            )
        if self._draining:
            return RefusedError(503, "server_shutting_down", "the server is shutting down", headers=retry)
        if engine is None:
            return RefusedError(503, "model_loading", "the model is still being loaded", headers=retry)
        return None

    def not_ready(self) -> RefusedError | None:
        """Return why this server should get no traffic, or None. A full queue is no such reason."""
        if (refusal := self.unavailable()) is not None:
            return refusal
        busy = 0.0 if self._engine is None else self._engine.busy_seconds
        if busy > self.config.step_timeout:
            return RefusedError(
                503, "engine_stalled", f"the engine has been in one step for {busy:.0f} seconds"
            )
        return None

    @cached_property
    def fingerprint(self) -> str:
        """A name for all that decides what greedy sampling gives: version, weights, number formats."""
        info = self.engine.info
        facts = (
            info.model,
            info.revision,
            info.dtype,
            info.kv_cache_dtype,
            info.attention_backend,
            info.device,
        )
        digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
        return f"tinyllm-{version('tinyllm')}-{digest}"

    @cached_property
    def thinks(self) -> bool:
        """Whether the model's answers may begin with thoughts in tags."""
        if self.config.reasoning != "auto":
            return self.config.reasoning == "think"
        tokenizer = None if self._engine is None else self._engine.tokenizer
        return tokenizer is not None and len(tokenizer.encode(OPEN, add_special_tokens=False)) == 1

    def check_model(self, name: str | None) -> str:
        """Return the name a response gives its model. Raises a 404 if it is not served here."""
        if name is None:
            return self.model_names[0]
        if name not in self.model_names:
            message = f"the model {name[:100]!r} is not served here; there is {', '.join(self.model_names)}"
            raise RefusedError(404, "model_not_found", message, param="model")
        return name

    # Requests.

    def engine_request_id(self, call: Call) -> str:
        """Return an id for one prompt of a call that no other has, even if clients use theirs twice."""
        return f"{call.request_id}-{next(self._numbers)}"

    def register(self, call: Call) -> None:
        """Make a call known to `cancel` until it ends."""
        same = self._calls.setdefault(call.request_id, [])
        same.append(call)

        def forget() -> None:
            same.remove(call)
            if not same:
                self._calls.pop(call.request_id, None)

        call.at_end.append(forget)

    def cancel(self, request_id: str, by: Call) -> bool:
        """Abort a caller's own request; returns whether there was one."""
        for prefix in ID_PREFIXES:
            request_id = request_id.removeprefix(prefix)
        calls = [call for call in self._calls.get(request_id, ()) if call.caller == by.caller]
        if self._engine is not None:
            for stream in (stream for call in calls for stream in call.streams):
                self._engine.abort(stream.request_id)
        return bool(calls)


def current_service() -> Service:
    """Return the service of the application that handles this request."""
    service: Service = current_app.extensions["tinyllm"]
    return service


def model_name(model: str | None) -> str:
    """Return what a model is called in the API: a Hub id as it is, of a path only the last part."""
    if model is None:
        return DEMO_MODEL
    path = Path(model).expanduser()
    name = path.resolve().name if path.exists() or path.is_absolute() else model
    return "".join(c if c.isprintable() else "?" for c in name)  # a file's name may be any bytes


def _settle() -> None:
    """Have the garbage collector pass over what is there now, which stays as long as the process.

    It would go through it again and again: 0.1 s or more each time, in which no token comes.
    """
    gc.collect()
    gc.freeze()


def _make_engine(config: ServerConfig) -> AsyncEngine:
    from tinyllm.engine.async_engine import AsyncEngine

    return AsyncEngine(config.engine_config)
