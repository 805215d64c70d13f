"""`Pace`: how many prompt tokens a step may take while answers wait for their next token."""

from __future__ import annotations

__all__ = ["Pace"]

MIN_BUDGET = 16
"""Fewer prompt tokens cost a step of their own nearly as much. Budgets are multiples of it: kernels are made
for a number of rows, and kept, so few different numbers should occur."""
WEIGHT = 0.25
"""Of the newest measurement in a moving average."""


class Pace:
    """Learns what steps cost from those that were, to keep one from taking too long.

    A step with answers in it is to take at most ``max_slowdown`` times as long as it would without prompts,
    or so many seconds. What it would take without is remembered for each power of two of answers; what a
    prompt token adds, as one number. Only the cut into steps depends on it, and no token does.
    """

    def __init__(self, max_slowdown: float) -> None:
        self._max_slowdown = max_slowdown
        self._decode_seconds: dict[int, float] = {}
        self._token_seconds: float | None = None

    def note(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take in how long a step took."""
        if seconds <= 0:
            return
        if num_prefill_tokens == 0:
            size = num_decodes.bit_length()
            self._decode_seconds[size] = _average(self._decode_seconds.get(size), seconds)
        elif num_prefill_tokens >= MIN_BUDGET:
            rest = seconds - (self._expected(max(num_decodes, 1)) or 0.0)  # weights are read in any case
            if rest > 0:  # or what is remembered of steps without prompts is too old to compare with
                self._token_seconds = _average(self._token_seconds, rest / num_prefill_tokens)

    def prefill_budget(self, num_decodes: int, seconds: float = 0.0) -> int | None:
        """Return the most prompt tokens for a step with so many answers; None if there is no limit.

        It may take ``seconds`` even where that is more than the slowdown allows.
        """
        expected = self._expected(num_decodes)
        if not self._max_slowdown or expected is None or self._token_seconds is None:
            return None
        budget = int((max(self._max_slowdown * expected, seconds) - expected) / self._token_seconds)
        return max(MIN_BUDGET, budget // MIN_BUDGET * MIN_BUDGET)

    def _expected(self, num_decodes: int) -> float | None:
        """Return the seconds of a step without prompts, going by the nearest number that is known."""
        if not num_decodes or not self._decode_seconds:
            return None
        size = num_decodes.bit_length()
        return self._decode_seconds[min(self._decode_seconds, key=lambda known: abs(known - size))]


def _average(before: float | None, newest: float) -> float:
    return newest if before is None else before + WEIGHT * (newest - before)
