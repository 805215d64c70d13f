"""Uniform random numbers as a pure function of seed, choice and position: nothing to keep or restore.

A generator that is asked once a token has to survive preemption, batching and restarts. A counter does
not: the number for output token ``position`` is the output of SplitMix64 (Steele, Lea and Flood, "Fast
Splittable Pseudorandom Number Generators", 2014) after that many steps, which is one multiplication away.
"""

from __future__ import annotations

import secrets
from typing import Final

__all__ = ["random_seed", "uniform"]

_MASK: Final = 2**64 - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
"""2**64 divided by the golden ratio, made odd: the step between two states."""


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the number in [0, 1) that draws output token ``position`` of answer ``choice``.

    ``seed`` is any integer, taken modulo 2**64. Each choice has its own sequence: its start is the output
    that ``seed`` gives for it.
    """
    start = _mix(seed + (choice + 1) * _GAMMA)
    bits = _mix(start + (position + 1) * _GAMMA)
    return (bits >> 11) * 2.0**-53


def random_seed() -> int:
    """Return a seed for a request that gave none: 64 bits from the operating system, in int64's range."""
    return secrets.randbits(64) - 2**63


def _mix(state: int) -> int:
    """SplitMix64's output function: every bit of ``state`` reaches every bit of the result."""
    state &= _MASK
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
    return state ^ (state >> 31)
