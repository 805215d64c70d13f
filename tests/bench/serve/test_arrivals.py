"""Arrivals come when their process says."""

from __future__ import annotations

import json
import math
import statistics
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.bench.serve.arrivals import Arrivals
from tinyllm.errors import ConfigError

RATES = st.floats(0.01, 1000)


@given(RATES, st.floats(0.1, 50), st.integers(2, 200), st.integers(0, 3))
def test_an_open_loop_has_exactly_the_mean_rate(
    rate: float, burstiness: float, count: int, seed: int
) -> None:
    times = Arrivals(request_rate=rate, burstiness=burstiness, seed=seed).times(count)
    assert len(times) == count
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] == pytest.approx((count - 1) / rate)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float) -> None:
    times = Arrivals(request_rate=10, burstiness=burstiness).times(20_001)
    gaps = [after - before for before, after in pairwise(times)]
    variation = statistics.pstdev(gaps) / statistics.fmean(gaps)
    assert variation == pytest.approx(burstiness**-0.5, rel=0.05)


def test_the_seed_decides() -> None:
    assert Arrivals(request_rate=5, seed=1).times(9) == Arrivals(request_rate=5, seed=1).times(9)
    assert Arrivals(request_rate=5, seed=1).times(9) != Arrivals(request_rate=5, seed=2).times(9)


@pytest.mark.parametrize(("kind", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_a_ramp_goes_from_one_rate_to_the_other(kind: Any, middle: float) -> None:
    ramp = Arrivals(ramp_up=kind, ramp_up_start_rps=1, ramp_up_end_rps=100, burstiness=1e6)
    gaps = [after - before for before, after in pairwise(ramp.times(1001))]
    assert 1 / gaps[0] == pytest.approx(1, rel=0.05)
    assert 1 / gaps[500] == pytest.approx(middle, rel=0.05)
    assert 1 / gaps[-1] == pytest.approx(100, rel=0.05)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50), st.floats(0.01, 100))
def test_a_trace_keeps_its_pattern(stamps: list[float], scale: float) -> None:
    times = Arrivals(use_timestamps=True, time_scale=scale).times(len(stamps), stamps)
    expected = [(stamp - min(stamps)) * scale for stamp in sorted(stamps)]
    assert times == pytest.approx(expected)


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=50, unique=True), RATES)
def test_a_trace_can_be_brought_to_a_rate(stamps: list[float], rate: float) -> None:
    times = Arrivals(use_timestamps=True, request_rate=rate).times(len(stamps), stamps)
    first, second, last = (sorted(stamps)[place] for place in (0, 1, -1))
    assert times[-1] == pytest.approx((len(stamps) - 1) / rate)
    assert times[1] / times[-1] == pytest.approx((second - first) / (last - first))


def test_equal_timestamps_at_a_rate_are_spread() -> None:
    assert Arrivals(use_timestamps=True, request_rate=2).times(3, [5, 5, 5]) == [0, 0.5, 1]


def test_without_a_rate_all_come_at_once() -> None:
    assert Arrivals().times(3) == [0, 0, 0]
    assert not Arrivals().is_closed


def test_a_closed_loop_has_a_concurrency_and_no_rate() -> None:
    assert Arrivals(max_concurrency=4).is_closed
    assert not Arrivals(max_concurrency=4, request_rate=3).is_closed
    assert not Arrivals(max_concurrency=4, use_timestamps=True).is_closed


def test_json_has_no_infinity() -> None:
    assert json.loads(json.dumps(Arrivals().to_json(), allow_nan=False))["request_rate"] == "inf"


@pytest.mark.parametrize(
    "options",
    [
        {"request_rate": 0},
        {"request_rate": math.nan},
        {"request_rate": 1, "burstiness": -1},
        {"request_rate": 1, "burstiness": math.inf},
        {"burstiness": 2},
        {"max_concurrency": 0},
        {"ramp_up": "linear"},
        {"ramp_up": "linear", "ramp_up_start_rps": 1, "ramp_up_end_rps": 2, "request_rate": 3},
        {"ramp_up_start_rps": 1},
        {"time_scale": 2},
        {"time_scale": 2, "use_timestamps": True, "request_rate": 1},
        {"use_timestamps": True, "burstiness": 2},
    ],
)
def test_what_makes_no_load_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Arrivals(**options)


def test_a_dataset_without_timestamps_cannot_be_replayed() -> None:
    with pytest.raises(ConfigError, match="timestamps"):
        Arrivals(use_timestamps=True).times(3)
