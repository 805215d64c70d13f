"""`Pace`: how many prompt tokens a step may take while answers wait for their next token."""

from __future__ import annotations

__all__ = ["Pace"]

MIN_BUDGET = 16
"""Fewer prompt tokens cost a step of their own nearly as much."""
WEIGHT = 0.25
"""Of the newest measurement in a moving average."""


class Pace:
    """Learns what steps cost from those that were, to keep one from taking too long.

    A step with answers in it is to take at most ``max_slowdown`` times as long as it would without prompts (0
    is no limit), or a given time. What it would take without is remembered for each power of two of answers;
    what a prompt token adds, as one number. Only the cut into steps depends on it, and no token does.
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
            # Without answers weights are read, too: about what a step with a single one takes.
            without = self._expected(num_decodes) if num_decodes else self._decode_seconds.get(1)
            rest = seconds - (without or 0.0)
            if rest > 0:  # or what is remembered of steps without prompts is too old to compare with
                self._token_seconds = _average(self._token_seconds, rest / num_prefill_tokens)

    def prefill_budget(self, num_decodes: int) -> int | None:
        """Return the most prompt tokens for a step with so many answers; None if nothing limits them yet."""
        expected = self._expected(num_decodes)
        return None if expected is None else self._budget((self._max_slowdown - 1) * expected)

    def budget_within(self, seconds: float, num_decodes: int) -> int | None:
        """Return the most prompt tokens for a step of ``seconds`` with so many answers, or None."""
        return self._budget(seconds - (self._expected(num_decodes) or 0.0))

    def _budget(self, seconds: float) -> int | None:
        """Return how many prompt tokens take so long."""
        if not self._max_slowdown or self._token_seconds is None:
            return None
        return max(MIN_BUDGET, int(seconds / self._token_seconds))

    def _expected(self, num_decodes: int) -> float | None:
        """Return the seconds of a step without prompts, going by the nearest number that is known."""
        if not num_decodes or not self._decode_seconds:
            return None
        size = num_decodes.bit_length()
        return self._decode_seconds[min(self._decode_seconds, key=lambda known: abs(known - size))]


def _average(before: float | None, newest: float) -> float:
    return newest if before is None else before + WEIGHT * (newest - before)
