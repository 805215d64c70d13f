"""How late the client itself was: what it cannot do in time it would take for the server's delay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

from tinyllm.bench.serve.records import RequestRecord
from tinyllm.bench.stats import percentile

__all__ = ["MAX_LAG_MS", "LagWatch", "lag_warnings"]

PERIOD_SECONDS: Final = 0.01
MAX_LAG_MS: Final = 5.0
"""At the 99th percentile; more is warned of."""
MAX_CPU_SHARE: Final = 0.8
"""Of one CPU, which is all that a client has."""


class LagWatch:
    """A timer that notes how late it fires, and the CPU time that the process takes meanwhile."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._cpu = time.process_time()
        self._start = time.perf_counter()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            due = time.perf_counter() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            self._lags.append(max(0.0, time.perf_counter() - due))

    def report(self, requests: Sequence[RequestRecord], *, by_the_clock: bool) -> dict[str, Any]:
        """Return lags in ms and the share of a CPU; ``by_the_clock``: also how late requests were sent."""
        seconds = time.perf_counter() - self._start
        lags = self._lags or [0.0]
        report: dict[str, Any] = {
            "p50_ms": percentile(lags, 50) * 1e3,
            "p99_ms": percentile(lags, 99) * 1e3,
            "max_ms": max(lags) * 1e3,
            "cpu_share": (time.process_time() - self._cpu) / seconds if seconds else 0.0,
        }
        delays = [record.delay for record in requests if record.turn == 0 and record.delay is not None]
        if by_the_clock and delays:
            report["send_p99_ms"] = percentile(delays, 99) * 1e3
            report["send_max_ms"] = max(delays) * 1e3
        return {name: round(value, 4) for name, value in report.items()}


def lag_warnings(lag: dict[str, Any]) -> list[str]:
    """Say if the client was the bottleneck."""
    late = max(lag["p99_ms"], lag.get("send_p99_ms", 0.0))
    if late > MAX_LAG_MS:
        return [
            f"this client was itself late (p99 {late:.1f} ms, above {MAX_LAG_MS:g}): latencies are too long "
            "by that much; give it a CPU of its own, or run it on another machine"
        ]
    if lag["cpu_share"] > MAX_CPU_SHARE:
        return [f"this client took {lag['cpu_share']:.0%} of a CPU: it may be the bottleneck"]
    return []
