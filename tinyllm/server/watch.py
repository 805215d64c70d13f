"""`Watch`: a time limit for something that happens again and again and is nearly always quick."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

__all__ = ["Watch"]


class Watch:
    """Calls ``ring`` when what is done inside ``with watch(seconds, ring):`` takes longer than that.

    An ``asyncio.timeout`` makes a timer and takes it back for each token of each stream. Here one timer looks
    once in a while whether the latest of them is late.
    """

    def __init__(self) -> None:
        self.rang = False
        """Whether the latest was late."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._seconds = 0.0
        self._ring: Callable[[], object] = _nothing

    def __call__(self, seconds: float, ring: Callable[[], object]) -> Watch:
        """Set what the next ``with`` watches. Each watch has the same ``seconds`` all its life."""
        self._seconds, self._ring = seconds, ring
        return self

    def __enter__(self) -> Watch:
        self.rang = False
        self._deadline = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._deadline = None

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._ring = _nothing

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return  # the next one sets the timer again
        if self._loop.time() >= self._deadline:
            self.rang = True
            self._ring()
        else:
            self._timer = self._loop.call_at(self._deadline, self._look)


def _nothing() -> None:
    pass
