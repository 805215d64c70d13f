"""Percentiles, the bootstrap, and ratios of pairs."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.bench.stats import bootstrap_interval, percentile, ratio, tail


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)), abs=1e-6)


def test_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_the_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    rng = random.Random(1)
    covered = 0
    for _ in range(100):
        low, high = bootstrap_interval([rng.gauss(5, 1) for _ in range(15)], rounds=200)
        covered += low <= 5 <= high
    assert 85 <= covered <= 100


def test_the_interval_narrows_with_confidence() -> None:
    values = [float(value) for value in range(20)]
    wide, narrow = bootstrap_interval(values), bootstrap_interval(values, confidence=0.5)
    assert wide[0] < narrow[0] <= statistics.median(values) <= narrow[1] < wide[1]


def test_what_slows_both_of_a_pair_changes_no_ratio() -> None:
    theirs = [100.0, 50.0, 10.0, 80.0]
    result = ratio([2 * rate for rate in theirs], theirs)
    assert (result.median, result.low, result.high, result.pairs) == (2, 2, 2, 4)


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        ratio([1.0], [1.0, 2.0])


def test_a_tail_keeps_the_ends_and_the_shares() -> None:
    curve = tail([float(value) for value in range(1, 10_001)])
    assert curve[0] == (10_000.0, 1 / 10_000)
    assert curve[-1] == (1.0, 1.0)
    assert all(share == pytest.approx((10_001 - value) / 10_000) for value, share in curve)
    assert len(curve) < 60
    assert tail([]) == []
