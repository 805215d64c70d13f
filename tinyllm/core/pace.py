"""`Pace`: how many prompt tokens a step may take while others wait for it to end."""

from __future__ import annotations

import math

__all__ = ["Pace"]

MIN_BUDGET = 16
"""Fewer prompt tokens cost a step of their own nearly as much. Budgets are multiples of it: kernels are made
for a number of rows, and kept, so few different numbers should occur."""
WEIGHT = 0.25
"""Of the newest measurement in a moving average."""
COMPANY_SECONDS = 10.0
"""So long after a request came beside another, a long prompt counts as by itself."""


class Pace:
    """Learns what steps cost from those that were, and who shares them, to keep one from taking too long.

    A step with answers in it is to take at most ``max_slowdown`` times as long as it would without prompts.
    What it would take without is remembered for each power of two of answers; what a prompt token adds, as
    one number. Only the cut into steps depends on it, and no token does.
    """

    def __init__(self, max_slowdown: float) -> None:
        self._max_slowdown = max_slowdown
        self._decode_seconds: dict[int, float] = {}
        self._token_seconds: float | None = None
        self._last_company = -math.inf
        self._stood_aside = False

    def note_company(self, now: float) -> None:
        """Take in that a request came while there was another."""
        self._last_company = now

    def long_budget(self, step: int, num_long: int, has_short: bool, num_decodes: int, now: float) -> int:
        """Return the most tokens of long prompts for a step that may have ``step`` tokens.

        Smaller parts of a prompt cost more, but whoever comes while one is computed waits until it is. So a
        prompt by itself comes as fast as it can, where others come and go it takes half a step at once, and
        beside answers a quarter; several long prompts take a little more. For short prompts all of them stand
        aside, though not twice in a row.
        """
        if not self._max_slowdown:
            return step
        self._stood_aside = has_short and not self._stood_aside
        if self._stood_aside:
            return 0
        if num_long > 1:
            return max(num_long, step * 3 // 8)
        if has_short or num_decodes:
            return max(1, step // 4)
        return max(1, step // 2) if now - self._last_company <= COMPANY_SECONDS else step

    def note(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take in how long a step took."""
        if seconds <= 0:
            return
        if num_prefill_tokens == 0:
            size = num_decodes.bit_length()
            self._decode_seconds[size] = _average(self._decode_seconds.get(size), seconds)
        elif num_prefill_tokens >= MIN_BUDGET:
            rest = seconds - (self._expected(num_decodes) or 0.0)
            if rest > 0:  # or what is remembered of steps without prompts is too old to compare with
                self._token_seconds = _average(self._token_seconds, rest / num_prefill_tokens)

    def prefill_budget(self, num_decodes: int) -> int | None:
        """Return the most prompt tokens for a step with so many answers; None if there is no limit."""
        expected = self._expected(num_decodes)
        if not self._max_slowdown or expected is None or self._token_seconds is None:
            return None
        budget = int((self._max_slowdown - 1) * expected / self._token_seconds)
        return max(MIN_BUDGET, budget // MIN_BUDGET * MIN_BUDGET)

    def _expected(self, num_decodes: int) -> float | None:
        """Return the seconds of a step without prompts, going by the nearest number that is known."""
        if not num_decodes or not self._decode_seconds:
            return None
        size = num_decodes.bit_length()
        return self._decode_seconds[min(self._decode_seconds, key=lambda known: abs(known - size))]


def _average(before: float | None, newest: float) -> float:
    return newest if before is None else before + WEIGHT * (newest - before)
