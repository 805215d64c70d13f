"""`Executor`: the one thread that owns an `EngineCore`: model, KV cache, scheduler and detokenisers."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tinyllm.config import EngineConfig
from tinyllm.engine.core import EngineCore
from tinyllm.engine.loaded import LoadedModel
from tinyllm.engine.mailbox import Mailbox
from tinyllm.engine.messages import Delivery, Submission
from tinyllm.errors import EngineClosedError, TinyLLMError

__all__ = [
    "CLOSE_TIMEOUT",
    "Abort",
    "Add",
    "Build",
    "Call",
    "Command",
    "Executor",
    "Outbox",
    "builder",
    "prepare_for_torch",
]

logger = logging.getLogger("tinyllm.engine")

Build = Callable[[EngineConfig], EngineCore]
"""Makes the core; called on the thread that will own it."""
Check = Callable[[], None]
"""Raises `EngineClosedError` once the engine is closed; called now and then by what takes long."""

CLOSE_TIMEOUT = 30.0
"""How long closing an engine waits for the step in progress, in seconds."""
EXIT_TIMEOUT = 10.0
"""How long a leaving interpreter waits for the step in progress, in seconds."""

SPIN_COUNT = "1000"
"""Rounds of GNU OpenMP's waiting loop."""
KERNELS = "120"
"""How many kernels oneDNN keeps, for the process and for each thread."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Add:
    """Take in a request."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class Abort:
    """End a request, wherever it is. One that is unknown or has ended is left alone."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Call:
    """Call a function with the core, between two steps. It must not raise."""

    function: Callable[[EngineCore], None]


Command = Add | Abort | Call


class Outbox(Protocol):
    """Where the thread's results go. Calls never block, and return False when nobody is there any more."""

    def started(self, model: LoadedModel) -> bool:
        """The model is loaded, and commands are taken."""
        ...

    def deliver(self, deliveries: list[Delivery]) -> bool:
        """A step's results, all at once."""
        ...

    def ended(self, cause: BaseException | None) -> bool:
        """The thread is done: the last call, made whatever happens. ``cause`` is the fault that ended it."""
        ...


class Executor:
    """A daemon thread that builds an `EngineCore`, then steps it while there is work, and sleeps while not.

    It is a daemon that is stopped at interpreter exit, and not a ``ThreadPoolExecutor``, which would keep the
    interpreter from leaving when its owner forgot to close. Methods never block, but for `join`.
    """

    def __init__(self, build: Callable[[Check], EngineCore], outbox: Outbox) -> None:
        self.mailbox: Mailbox[Command] = Mailbox()
        self._build = build
        self._outbox = outbox
        self._stopping = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"tinyllm-executor-{next(_numbers)}", daemon=True
        )

    def start(self) -> None:
        """Start the thread; the outbox hears how it goes."""
        _started.add(self)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step in progress, or the tensor that it loads. Safe in ``__del__``."""
        self._stopping = True
        self.mailbox.wake()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the thread has ended; False if ``timeout`` seconds were not enough."""
        if self.was_started:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    @property
    def was_started(self) -> bool:
        """Whether there was ever a thread."""
        return self._thread.ident is not None

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def busy_seconds(self) -> float:
        """How long the present step has been going on; 0 between steps and while asleep."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    # On the thread.

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            core = self._build(self._check_wanted)
            with core.context():
                if not self._stopping and self._outbox.started(core.model):
                    self._serve(core)
        except BaseException as error:  # a Rust panic is no Exception
            if self._stopping and isinstance(error, EngineClosedError):
                return  # closed while it loaded: nothing is wrong
            if not isinstance(error, TinyLLMError):  # those are for whoever starts the engine
                logger.error("the executor thread failed", exc_info=error)
            traceback.clear_frames(error.__traceback__)  # or the error keeps the model in memory
            cause = error
        finally:
            self._busy_since = None
            self._outbox.ended(cause)

    def _check_wanted(self) -> None:
        if self._stopping:
            raise EngineClosedError("the engine was closed while it loaded")

    def _serve(self, core: EngineCore) -> None:
        progress = False
        while True:
            timeout = None if progress else core.seconds_to_wakeup()
            commands = self.mailbox.drain(block=not progress, timeout=timeout)
            if self._stopping:
                return
            self._busy_since = time.monotonic()
            for command in commands:
                _apply(command, core)
            deliveries = core.step(lambda: self._apply_waiting(core))
            progress = core.made_progress
            self._busy_since = None
            if deliveries and not self._outbox.deliver(deliveries):
                return  # the loop was closed: nobody can read any more

    def _apply_waiting(self, core: EngineCore) -> None:
        """Take commands that came while the model ran: what was aborted needs no detokenising."""
        for command in self.mailbox.drain():
            _apply(command, core)


def _apply(command: Command, core: EngineCore) -> None:
    match command:
        case Add(submission):
            core.add(submission)
        case Abort(request_id):
            core.abort(request_id)
        case Call(function):
            function(core)


_started: weakref.WeakSet[Executor] = weakref.WeakSet()


def _stop_all() -> None:
    """Stop every thread before the interpreter takes its modules away."""
    executors = list(_started)
    for executor in executors:
        executor.stop()
    deadline = time.monotonic() + EXIT_TIMEOUT
    for executor in executors:
        executor.join(max(0.0, deadline - time.monotonic()))


atexit.register(_stop_all)


def prepare_for_torch() -> None:
    """Set what torch's libraries read from the environment. Works before torch is loaded."""
    _bound_spinning()
    _bound_kernels()


def _bound_spinning() -> None:
    """Have torch's threads spin for about ten microseconds before they sleep.

    A step has hundreds of short parallel parts, so sleeping at once costs a quarter of it; but threads that
    spin long are many times slower as soon as the event loop or another process wants the processor too.
    """
    if "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ:
        return
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    if sys.platform == "linux":  # or threads sleep at once when there are more than processors, busy or not
        os.environ["OMP_WAIT_POLICY"] = "active"


def _bound_kernels() -> None:
    """Have oneDNN keep fewer of the kernels that it makes.

    Without the C kernels it makes about five for every number of rows, each about half a megabyte, and would
    keep a thousand. These are enough for every number of answers that are generated at once.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, KERNELS)


def builder(config: EngineConfig, build: Build | None) -> Callable[[Check], EngineCore]:
    """Return what makes the core that ``config`` asks for: from files, or with a `Build` of a test."""
    return partial(_build_from_files, config) if build is None else lambda check: build(config)


def _build_from_files(config: EngineConfig, check: Check) -> EngineCore:
    prepare_for_torch()
    from tinyllm.engine.build import build_core  # imports torch, which is wanted on the executor thread only

    return build_core(config, check)
