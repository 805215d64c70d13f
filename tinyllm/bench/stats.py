"""The few statistics that measurements on a noisy machine need."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Curve", "Ratio", "bootstrap_interval", "percentile", "ratio", "tail"]

Curve = list[tuple[float, float]]
"""Values, each with the share of all values that are at least as large."""

_SHARES: Final = tuple(mantissa * 10.0**power for power in range(-5, 0) for mantissa in (1, 1.5, 2, 3, 5, 7))
"""Of which a tail keeps the values, beside the largest and the smallest."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times more one thing is than another: the median over pairs, and a 95 % interval of it."""

    median: float
    low: float
    high: float
    pairs: int


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that ``percent`` of ``values`` do not exceed, between neighbours in proportion."""
    if not values:
        raise ValueError("no values have no percentile")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def tail(values: Sequence[float]) -> Curve:
    """Return the upper tail of a distribution in a few points: enough to draw it, few enough to keep."""
    ordered = sorted(values, reverse=True)
    places = sorted({0, len(ordered) - 1} | {int(share * len(ordered)) for share in _SHARES})
    return [(ordered[place], (place + 1) / len(ordered)) for place in places if 0 <= place < len(ordered)]


def bootstrap_interval(
    values: Sequence[float], *, confidence: float = 0.95, rounds: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Return an interval of the median of ``values``: the percentile bootstrap (Efron, 1979)."""
    rng = random.Random(seed)  # noqa: S311  no secret
    medians = [statistics.median(rng.choices(values, k=len(values))) for _ in range(rounds)]
    tail = (1 - confidence) / 2 * 100
    return percentile(medians, tail), percentile(medians, 100 - tail)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Compare pairs that were measured next to each other.

    Ratios are taken first and their median after: what slows both of a pair then cancels out, which a ratio
    of two medians does not give.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, high = bootstrap_interval(ratios)
    return Ratio(statistics.median(ratios), low, high, len(ratios))
