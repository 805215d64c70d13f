"""`LongPrompts`: how much of a step long prompts take, so that nobody who comes meanwhile waits for long."""

from __future__ import annotations

import math

__all__ = ["LongPrompts"]

COMPANY_SECONDS = 10.0
"""So long after a request came beside another, a long prompt counts as by itself."""


class LongPrompts:
    """Gives long prompts parts of steps. Smaller parts cost more, but others wait until one is computed.

    A step is as many tokens as one may have, or, where a model is so fast that these take less than the time
    that a step may take beside answers, as many as fill that time.

    A prompt by itself comes as fast as it can. Where requests come and go it takes three eighths of a step at
    once, as several together do, and beside answers or short prompts a quarter. For short prompts all of them
    stand aside, though not twice in a row. Only the cut into steps depends on it, and no token does.
    """

    def __init__(self) -> None:
        self._last_company = -math.inf
        self._stood_aside = False

    def note_company(self, now: float) -> None:
        """Take in that a request came while there was another; ``now`` is in seconds, of any clock."""
        self._last_company = now

    def budget(self, step: int, num_long: int, has_short: bool, num_decodes: int, now: float) -> int:
        """Return the most tokens of ``num_long`` long prompts for a step of ``step``; once for each."""
        self._stood_aside = has_short and not self._stood_aside
        if self._stood_aside:
            return 0
        if num_long == 1 and (has_short or num_decodes):
            return max(1, step // 4)
        has_company = now - self._last_company <= COMPANY_SECONDS
        return max(num_long, step * 3 // 8) if has_company or num_long > 1 else step
