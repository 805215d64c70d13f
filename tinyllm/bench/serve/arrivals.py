"""When requests are due: the arrival processes of a load."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from tinyllm.errors import ConfigError

__all__ = ["Arrivals"]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How load comes: closed, open at a rate, on a ramp, or as a trace had it.

    * Closed loop: no rate, ``max_concurrency`` requests at any time, the next one when one is answered.
    * Open loop: ``request_rate`` requests a second on average, whether or not the server keeps up. Gaps are
      drawn from a gamma distribution of shape ``burstiness``: 1 is a Poisson process, less comes in bursts,
      more is steadier. They are then scaled so that the mean rate is exactly the one asked for.
    * Ramp: the rate goes from ``ramp_up_start_rps`` to ``ramp_up_end_rps`` over the requests.
    * Trace: the samples' own timestamps, from the first, times ``time_scale``; with a ``request_rate``,
      scaled to that mean rate instead, which leaves the pattern as it is.

    ``max_concurrency`` beside a rate bounds the requests in flight; those that are due wait in the client,
    and the wait is reported as their delay. Raises `ConfigError` for values that make no load, or that
    would mean nothing.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None
    ramp_up: Literal["linear", "exponential"] | None = None
    ramp_up_start_rps: float = 0.0
    ramp_up_end_rps: float = 0.0
    use_timestamps: bool = False
    time_scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("request_rate", "burstiness", "time_scale"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{_flag(name)} must be above 0 (got {getattr(self, name)})")
        if not math.isfinite(self.burstiness) or not math.isfinite(self.time_scale):
            raise ConfigError("--burstiness and --time-scale must be finite")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"--max-concurrency must be at least 1 (got {self.max_concurrency})")
        if self.ramp_up:
            self._check_ramp()
        elif self.ramp_up_start_rps or self.ramp_up_end_rps:
            raise ConfigError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy")
        is_drawn = (math.isfinite(self.request_rate) or self.ramp_up) and not self.use_timestamps
        if self.burstiness != 1 and not is_drawn:
            raise ConfigError("--burstiness shapes the gaps of --request-rate or of a ramp: give one of them")
        if self.time_scale != 1 and (not self.use_timestamps or math.isfinite(self.request_rate)):
            raise ConfigError("--time-scale stretches --replay-timestamps, which --request-rate does already")

    @property
    def is_closed(self) -> bool:
        """Whether a request is sent when another one is answered, rather than by the clock."""
        open_loop = math.isfinite(self.request_rate) or self.use_timestamps or self.ramp_up is not None
        return not open_loop and self.max_concurrency is not None

    def times(self, count: int, timestamps: Sequence[float] = ()) -> list[float]:
        """Return when each of ``count`` requests is due, in seconds from the first, in order."""
        if self.use_timestamps:
            return self._replayed(timestamps)
        if count < 2 or (self.ramp_up is None and math.isinf(self.request_rate)):
            return [0.0] * count
        rng = random.Random(f"arrivals/{self.seed}")  # noqa: S311  no secret
        # Gaps of mean 1, and shape `burstiness`
        gaps = [rng.gammavariate(self.burstiness, 1 / self.burstiness) for _ in range(count - 1)]
        if self.ramp_up is not None:
            gaps = [gap / self._rate_at(place / (count - 1)) for place, gap in enumerate(gaps)]
            return [0.0, *accumulate(gaps)]
        return _at_rate([0.0, *accumulate(gaps)], self.request_rate)

    def to_json(self) -> dict[str, Any]:
        """Return the arrivals as a file has them; an unbounded rate is ``"inf"``, as JSON has no infinity."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        kind = "closed" if self.is_closed else "trace" if self.use_timestamps else self.ramp_up or "open"
        rate = self.request_rate if math.isfinite(self.request_rate) else "inf"
        return {"kind": kind} | fields | {"request_rate": rate}

    def _replayed(self, timestamps: Sequence[float]) -> list[float]:
        if not timestamps:
            raise ConfigError("the dataset has no timestamps to replay: use --request-rate instead")
        ordered = sorted(timestamps)
        offsets = [timestamp - ordered[0] for timestamp in ordered]
        if math.isfinite(self.request_rate):
            return _at_rate(offsets, self.request_rate)
        return [offset * self.time_scale for offset in offsets]

    def _rate_at(self, progress: float) -> float:
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up == "linear":
            return start + (end - start) * progress
        return float(start * (end / start) ** progress)

    def _check_ramp(self) -> None:
        if not (0 < self.ramp_up_start_rps < math.inf and 0 < self.ramp_up_end_rps < math.inf):
            raise ConfigError("a ramp needs --ramp-up-start-rps and --ramp-up-end-rps, both above 0")
        if math.isfinite(self.request_rate) or self.use_timestamps:
            raise ConfigError("--ramp-up-strategy takes the place of --request-rate and of timestamps")


def _at_rate(times: Sequence[float], rate: float) -> list[float]:
    """Stretch ``times`` so that they come at ``rate`` on average."""
    if len(times) < 2 or times[-1] == 0:
        return [index / rate for index in range(len(times))]
    factor = (len(times) - 1) / rate / times[-1]
    return [time * factor for time in times]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
