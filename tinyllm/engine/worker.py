"""`TextWorker`: helper threads for text that would take too long on the event loop."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tinyllm.errors import RequestFailedError, TinyLLMError

__all__ = ["Outcome", "TextWorker", "is_long"]

T = TypeVar("T")

LONG_TEXT = 65_536
"""Characters; more may take a good part of a second."""

_numbers = itertools.count()


def is_long(*values: object) -> bool:
    """Whether texts, with those in lists and dictionaries, are long together. Looks no further than it must.

    Takes anything, for it is asked before what it is given is checked.
    """
    left, size = list(values), 0
    while left and size <= LONG_TEXT:
        value = left.pop()
        size += len(value) if isinstance(value, str) else 1
        if type(value) in (list, tuple):
            left.extend(value)  # type: ignore[arg-type]
        elif type(value) is dict:
            left.extend(value.values())
    return size > LONG_TEXT


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a call gave: a value, or the error it raised."""

    value: T | None = None
    error: TinyLLMError | None = None

    @classmethod
    def of(cls, function: Callable[[], T]) -> Outcome[T]:
        """Call ``function``, and hold on to whatever comes of it (a Rust panic is no ``Exception``)."""
        try:
            return cls(value=function())
        except TinyLLMError as error:
            return cls(error=error)
        except BaseException as fault:
            failure = RequestFailedError(f"the text could not be prepared ({type(fault).__name__})")
            failure.__cause__ = fault
            return cls(error=failure)

    def get(self) -> T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # T may itself be optional


class TextWorker:
    """Calls functions on two daemon threads, so that long texts hold up only each other."""

    def __init__(self) -> None:
        self._short, self._long = _Lane(), _Lane()

    def submit(
        self, function: Callable[[], T], done: Callable[[Outcome[T]], Any], *, long: bool = False
    ) -> None:
        """Call ``function``, then ``done`` with what came of it, both on a thread; ``done`` must not raise.

        Short ones are called in order, and so are ``long`` ones. To be called from the owner's thread only.
        """
        (self._long if long else self._short).put(lambda: done(Outcome.of(function)))

    def stop(self) -> None:
        """End the threads after what is waiting. Never blocks; safe in ``__del__``."""
        self._short.stop()
        self._long.stop()


class _Lane:
    """Calls functions one after the other on a thread of its own, which starts with the first."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)
        if self._thread is None:
            name = f"tinyllm-text-{next(_numbers)}"
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Not a method, so that the thread does not keep its owner alive."""
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep what it refers to until the next one comes
