"""`LongPrompts`: how much of a step long prompts take, so that nobody who comes meanwhile waits for long."""

from __future__ import annotations

import math

__all__ = ["LongPrompts"]

COMPANY_SECONDS = 10.0
"""So long after a request came beside another, a long prompt counts as by itself."""


class LongPrompts:
    """Gives long prompts parts of steps. Smaller parts cost more, but others wait until one is computed.

    A prompt by itself comes as fast as it can. Where requests come and go it takes three eighths of a step at
    once, as several together do, and beside answers or short prompts a quarter. For short prompts all of them
    stand aside, though not twice in a row. Only the cut into steps depends on it, and no token does.
    """

    def __init__(self, step: int) -> None:
        """Take the number of tokens that a step may have."""
        self._step = step
        self._last_company = -math.inf
        self._stood_aside = False

    def note_company(self, now: float) -> None:
        """Take in that a request came while there was another; ``now`` is in seconds, of any clock."""
        self._last_company = now

    def budget(self, num_long: int, has_short: bool, num_decodes: int, now: float) -> int:
        """Return the most tokens of ``num_long`` long prompts for the next step; call it once for each."""
        self._stood_aside = has_short and not self._stood_aside
        if self._stood_aside:
            return 0
        if num_long == 1 and (has_short or num_decodes):
            return max(1, self._step // 4)
        has_company = now - self._last_company <= COMPANY_SECONDS
        return max(num_long, self._step * 3 // 8) if has_company or num_long > 1 else self._step
