"""`TextWorker`: a helper thread for text that would take too long on the event loop."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tinyllm.errors import RequestFailedError, TinyLLMError

__all__ = ["Outcome", "TextWorker"]

T = TypeVar("T")

_numbers = itertools.count()


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
    """Calls functions one after the other on a daemon thread of its own, which starts with the first."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, function: Callable[[], T], done: Callable[[Outcome[T]], Any]) -> None:
        """Call ``function``, then ``done`` with what came of it, both on the worker; ``done`` must not raise.

        To be called from one thread only, the owner's.
        """
        self._jobs.put(lambda: done(Outcome.of(function)))
        if self._thread is None:
            name = f"tinyllm-text-{next(_numbers)}"
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name=name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread after what is waiting. Never blocks; safe in ``__del__``."""
        self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    """Not a method, so that the thread does not keep its owner alive."""
    while (job := jobs.get()) is not None:
        job()
        del job  # or it would keep what it refers to until the next one comes
