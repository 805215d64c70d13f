"""The search for C_ref, on servers whose capacity is known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.bench.capacity.search import ATTEMPTS, SLOWEST, Capacity, Probe, find_capacity, waiting_limit
from tinyllm.bench.serve.records import Limits
from tinyllm.errors import ConfigError

LIMITS = Limits(ttft=500, e2el=3000)


def search(is_sustained: Callable[[float], bool], start: float = 1.0, tolerance: float = 0.05) -> Capacity:
    async def probe(rate: float) -> Probe:
        return Probe(rate, 100, 100 / rate, is_sustained(rate), 1.0, 0)

    return asyncio.run(find_capacity(probe, start=start, tolerance=tolerance))


@given(capacity=st.floats(0.05, 5000), start=st.floats(0.1, 100), tolerance=st.floats(0.01, 0.5))
@settings(max_examples=60)
def test_c_ref_is_within_the_tolerance(capacity: float, start: float, tolerance: float) -> None:
    found = search(lambda rate: rate <= capacity, start, tolerance)
    assert found.sustained is not None
    assert found.not_sustained is not None
    assert found.sustained <= capacity < found.not_sustained
    error = found.search_error()
    assert error is not None
    assert error <= tolerance * 1.001


def test_a_rate_that_fails_once_is_tried_again() -> None:
    failed_once: set[float] = set()

    def flaky(rate: float) -> bool:
        if rate in failed_once:
            return rate <= 10
        failed_once.add(rate)
        return False

    found = search(flaky)
    assert found.sustained is not None
    assert 9.5 <= found.sustained <= 10
    assert all(
        sum(probe.rate == rate for probe in found.probes) == ATTEMPTS
        for rate in {probe.rate for probe in found.probes}
    )


def test_a_server_that_sustains_nothing_is_given_up() -> None:
    found = search(lambda rate: False)
    assert found.sustained is None
    assert found.probes[-1].rate == SLOWEST
    report = found.to_json(LIMITS)
    assert report["c_ref"] is None
    assert report["search_error"] is None
    assert report["length_error"] is None
    json.dumps(report, allow_nan=False)


def test_a_server_without_an_end_is_given_up() -> None:
    found = search(lambda rate: True)
    assert found.not_sustained is None
    assert found.search_error() is None


def test_the_length_of_probes_is_an_error_too() -> None:
    found = search(lambda rate: rate <= 4, start=4.0)
    assert found.sustained == 4.0
    assert found.length_error(LIMITS) == pytest.approx(0.5 / 25)


def test_limits_that_let_requests_wait_for_ever_are_refused() -> None:
    assert waiting_limit(LIMITS) == 500
    assert waiting_limit(Limits(e2el=3000)) == 3000
    with pytest.raises(ConfigError, match="ttft"):
        waiting_limit(Limits(tpot=50))
