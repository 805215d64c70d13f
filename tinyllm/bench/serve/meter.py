"""`Clock` and `Meter`: the time of a run, and what its client sees at the moment."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

__all__ = ["Clock", "Meter"]


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def now(self) -> float:
        """Return the time."""
        return time.perf_counter() - self._start

    async def until(self, moment: float) -> None:
        """Return at ``moment``, or at once if it has passed."""
        await asyncio.sleep(max(0.0, moment - self.now()))


@dataclass(slots=True)
class Meter:
    """What the client sees at this moment."""

    in_flight: int = 0
    output_chunks: int = 0
