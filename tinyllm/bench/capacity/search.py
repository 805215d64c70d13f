"""`find_capacity`: the highest request rate that a server sustains, by doubling and then bisection.

A rate is *sustained* when a probe at it has no failed request and at least ``good_ratio`` of its requests
within the limits. A probe that does not is made again, as a busy neighbour looks the same; a rate that fails
twice is not sustained. Two errors remain, and both are reported:

* of the search: C_ref was sustained, and a rate at most ``tolerance`` higher was not;
* of the probes' length: at a rate above what a server can do, the queue grows by the excess. A request may
  wait as long as the limit lets it, so a probe of T seconds sees no excess of less than the limit over T.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from tinyllm.bench.serve.records import Limits
from tinyllm.errors import ConfigError

__all__ = ["ATTEMPTS", "Capacity", "Probe", "find_capacity", "waiting_limit"]

ATTEMPTS: Final = 2
"""Probes that must fail at a rate before it counts as not sustained."""
MAX_RATES: Final = 24
SLOWEST: Final = 1 / 64
"""Requests a second below which a server counts as not able to serve the workload within the limits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One rate, tried."""

    rate: float
    """Requests a second."""
    requests: int
    seconds: float
    """In which they were offered."""
    sustained: bool
    good_ratio: float | None
    """None if it was cut short, when so many were bad that the rest could not change it."""
    failed: int
    """Requests without an answer."""


@dataclass(slots=True)
class Capacity:
    """What a search found."""

    probes: list[Probe] = field(default_factory=list)
    sustained: float | None = None
    """C_ref: the highest rate that was sustained; None if none was."""
    not_sustained: float | None = None
    """The lowest rate that was not; None if every rate was."""

    def settle(self, rate: float, sustained: bool) -> None:
        """Note what is known of a rate."""
        if sustained:
            self.sustained = max(rate, self.sustained or 0.0)
        else:
            self.not_sustained = min(rate, self.not_sustained or math.inf)

    def search_error(self) -> float | None:
        """Return by which part C_ref may be too low; None if the search found no end."""
        if self.sustained is None or self.not_sustained is None:
            return None
        return self.not_sustained / self.sustained - 1

    def length_error(self, limits: Limits) -> float | None:
        """Return by which part C_ref may be too high, from the shortest probe at it."""
        spans = [probe.seconds for probe in self.probes if probe.rate == self.sustained and probe.sustained]
        return waiting_limit(limits) / 1e3 / min(spans) if spans and min(spans) > 0 else None

    def to_json(self, limits: Limits) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "c_ref": self.sustained,
            "not_sustained": self.not_sustained,
            "search_error": self.search_error(),
            "length_error": self.length_error(limits),
            "probes": [asdict(probe) for probe in self.probes],
        }


async def find_capacity(
    probe: Callable[[float], Awaitable[Probe]], *, start: float = 1.0, tolerance: float = 0.05
) -> Capacity:
    """Search from ``start`` requests a second until the rate is known to ``tolerance``.

    The rate doubles until it is not sustained, or halves until it is; then the geometric middle of the gap
    is tried until the gap is small enough.
    """
    found = Capacity()
    rate = start
    for _ in range(MAX_RATES):
        found.settle(rate, await _is_sustained(rate, probe, found.probes))
        if found.not_sustained is None:
            rate *= 2
        elif found.sustained is None:
            rate /= 2
            if rate < SLOWEST:
                break
        elif found.not_sustained <= found.sustained * (1 + tolerance):
            break
        else:
            rate = math.sqrt(found.sustained * found.not_sustained)
    return found


async def _is_sustained(rate: float, probe: Callable[[float], Awaitable[Probe]], probes: list[Probe]) -> bool:
    for _ in range(ATTEMPTS):
        probes.append(await probe(rate))
        if probes[-1].sustained:
            return True
    return False


def waiting_limit(limits: Limits) -> float:
    """Return how long a good request may wait, in ms. Raises `ConfigError` if for ever."""
    known = [limit for limit in (limits.ttft, limits.e2el) if limit is not None]
    if not known:
        raise ConfigError(
            "capacity needs --goodput with ttft:MS or e2el:MS: without, a queue that grows for ever is good"
        )
    return min(known)
