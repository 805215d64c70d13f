"""The figures of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.bench.serve.metrics import summarize
from tinyllm.bench.serve.records import Limits, RequestRecord


def answered(start: float, first: float, end: float, tokens: int = 3, label: str = "") -> RequestRecord:
    chunks = [float(moment) for moment in np.linspace(start + first, start + end, tokens)]
    return RequestRecord(
        0,
        label=label,
        scheduled=start,
        sent=start,
        first=start + first,
        finished=start + end,
        chunks=chunks,
        prompt_tokens=10,
        output_tokens=tokens,
        cached_tokens=4,
        usage=True,
    )


def failed(error: str) -> RequestRecord:
    return RequestRecord(0, sent=0.0, finished=50.0, first=40.0, chunks=[40.0, 50.0], error=error)


SECONDS = st.integers(1, 10**6).map(lambda number: number / 1e4)


@settings(max_examples=25)
@given(st.lists(st.tuples(SECONDS, SECONDS, SECONDS), min_size=1, max_size=20), st.floats(0, 100))
def test_latencies_are_as_numpy_has_them(times: list[tuple[float, float, float]], percent: float) -> None:
    records = [answered(start, first, first + rest) for start, first, rest in times]
    figures = summarize(records, 10.0, percentiles=[percent])
    seconds = {
        "ttft_ms": [record.ttft for record in records],
        "tpot_ms": [record.tpot for record in records],
        "e2el_ms": [record.e2el for record in records],
        "itl_ms": [gap for record in records for gap in record.gaps],
    }
    for name, values in seconds.items():
        expected = np.array(values, dtype=float) * 1e3
        assert figures[name]["count"] == len(expected)
        assert figures[name]["mean"] == pytest.approx(expected.mean(), abs=1e-5)
        assert figures[name]["median"] == pytest.approx(np.median(expected), abs=1e-5)
        assert figures[name][f"p{percent:g}"] == pytest.approx(np.percentile(expected, percent), abs=1e-5)
        assert figures[name]["max"] == pytest.approx(expected.max(), abs=1e-5)


def test_totals_and_rates() -> None:
    figures = summarize([answered(0, 1, 2), answered(1, 1, 2, tokens=5)], 4.0)
    assert figures["request_throughput"] == 0.5
    assert figures["output_throughput"] == 2.0
    assert figures["total_token_throughput"] == 7.0
    assert figures["cached_share"] == 0.4
    assert figures["peak_in_flight"] == 2


def test_errors_are_kept_apart_from_latencies() -> None:
    figures = summarize([answered(0, 1, 2), failed("http_500"), failed("http_500"), failed("timeout")], 4.0)
    assert figures["errors"] == {"http_500": 2, "timeout": 1}
    assert (figures["completed"], figures["failed"]) == (1, 3)
    assert figures["ttft_ms"]["max"] == figures["ttft_ms"]["min"] == 1000
    assert figures["itl_ms"]["count"] == 2
    assert figures["good_ratio"] == 0.25


def test_goodput_is_of_requests_within_the_limits() -> None:
    records = [answered(0, 0.1, 1), answered(0, 0.3, 1), failed("timeout")]
    figures = summarize(records, 2.0, limits=Limits(ttft=200))
    assert (figures["good"], figures["goodput"]) == (1, 0.5)
    assert figures["limits_ms"] == {"ttft": 200}


def test_kinds_have_figures_of_their_own() -> None:
    records = [answered(0, 0.1, 1, label="short"), answered(0, 0.3, 1, label="long")]
    by_label = summarize(records, 2.0, limits=Limits(ttft=200))["by_label"]
    assert by_label["short"]["ttft_ms"]["mean"] == pytest.approx(100)
    assert by_label["short"]["good_ratio"] == 1
    assert by_label["long"]["good_ratio"] == 0
    assert summarize(records[:1], 2.0)["by_label"] == {}


def test_an_end_and_a_beginning_at_one_moment_do_not_overlap() -> None:
    assert summarize([answered(0, 1, 2), answered(2, 1, 2)], 4.0)["peak_in_flight"] == 1


def test_a_run_in_which_nothing_was_answered_has_figures() -> None:
    for records in ([], [failed("connect")], [RequestRecord(0, error="not_sent", finished=0.0)]):
        figures = summarize(records, 0.0)
        assert figures["ttft_ms"] is None
        assert figures["request_throughput"] is None
        assert figures["cached_share"] is None
        json.dumps(figures, allow_nan=False)
