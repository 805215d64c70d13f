"""The options of ``tinyllm bench capacity`` beside server and dataset. Each field is a flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import Field

from tinyllm.bench.serve.settings import Options

__all__ = ["FRACTIONS", "CapacityOptions"]

FRACTIONS: Final = (0.25, 0.50, 0.75, 0.90)

Positive = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CapacityOptions(Options):
    """How to search, and what to replay."""

    good_ratio: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Part of a probe's requests that must be within the limits for its rate to be sustained."""
    start_rate: Above0 = 1.0
    """Requests a second of the first probe."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """The search ends when C_ref is known to that part."""
    probe_seconds: Above0 = 30.0
    """Least time in which a probe offers its requests."""
    probe_requests: Positive = 60
    """Fewest requests of a probe."""
    fraction: Sequence[Annotated[float, Field(gt=0, le=2)]] = FRACTIONS
    """Part of C_ref to replay at; may be given several times."""
    windows: Annotated[int, Field(ge=0)] = 1
    """Parts of the dataset to replay, each of ``num_prompts`` requests; 0 only searches. A file that is no
    trace has one."""
    burstiness: Above0 = 1.0
    """Shape of the gamma distribution of the gaps, where the dataset is no trace; 1 is a Poisson process."""
