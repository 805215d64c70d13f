"""`Mailbox`: the way in. Commands from any thread to the executor thread, and a wake-up with them."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["Mailbox"]

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Commands put by any thread and drained by one, in order.

    It needs no bound of its own: a command belongs to an accepted request (one to add it, one to abort it),
    and admission bounds those.

    The wake-up is sticky: `wake` before ``drain(block=True)`` makes it return at once. It is a lock used as a
    binary semaphore, and not a `threading.Event` or `queue.Queue`: a garbage collected stream puts its abort
    from ``__del__``, which may interrupt the very thread that holds the inner lock of one of those.
    """

    def __init__(self) -> None:
        self._commands: deque[T] = deque()
        self._awake = threading.Lock()
        self._awake.acquire()  # locked: nothing to wake up for

    def put(self, command: T) -> None:
        """Add a command and wake the reader. Never blocks; safe in ``__del__``."""
        self._commands.append(command)
        self.wake()

    def wake(self) -> None:
        """Make the present or the next blocking `drain` return. Never blocks; safe in ``__del__``."""
        with suppress(RuntimeError):  # already released: the wake-up that is there serves for both
            self._awake.release()

    def drain(self, *, block: bool = False, timeout: float | None = None) -> list[T]:
        """Take all commands; with ``block``, wait for a wake-up first, at most ``timeout`` seconds.

        Without ``block`` the wake-up is left for the next blocking call: it may mean more than a command
        (a reader made room), which only a new step can see.
        """
        if block:
            seconds = -1.0 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX)
            self._awake.acquire(timeout=seconds)
        commands: list[T] = []
        while self._commands:
            commands.append(self._commands.popleft())
        return commands
