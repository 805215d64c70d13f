"""Records: what is derived from times, and that JSON loses nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.bench.serve.metrics import summarize
from tinyllm.bench.serve.records import (
    Limits,
    RequestRecord,
    RunResult,
    TimelinePoint,
    read_result,
    write_result,
)
from tinyllm.errors import ConfigError

MICROSECONDS = st.integers(0, 10**10).map(lambda number: number / 1e6)
COUNTS = st.none() | st.integers(0, 10**6)
RECORDS = st.builds(
    RequestRecord,
    index=st.integers(0, 10**6),
    label=st.text(max_size=5),
    conversation=st.integers(0, 9),
    turn=st.integers(0, 9),
    scheduled=MICROSECONDS,
    sent=st.none() | MICROSECONDS,
    first=st.none() | MICROSECONDS,
    finished=st.none() | MICROSECONDS,
    chunks=st.lists(MICROSECONDS, max_size=5),
    asked_tokens=COUNTS,
    prompt_tokens=COUNTS,
    output_tokens=COUNTS,
    cached_tokens=COUNTS,
    usage=st.booleans(),
    finish_reason=st.none() | st.just("stop"),
    status=st.none() | st.just(200),
    error=st.none() | st.just("timeout"),
    message=st.none() | st.text(max_size=9),
)


def result(requests: list[RequestRecord]) -> RunResult:
    return RunResult(
        metadata={"target": {"model": "m"}},
        requests=requests,
        summary=summarize(requests, 2.0),
        timeline=[TimelinePoint(0.0, 0, 0), TimelinePoint(1.0, 3, 7, 2.0, 1.0, 0.5)],
        client_lag={"p99_ms": 1.0},
        server_metrics={"before": {"tinyllm:x": 1.0}, "after": {}},
        warnings=["late"],
    )


@settings(max_examples=40)
@given(st.lists(RECORDS, max_size=4))
def test_json_loses_nothing(requests: list[RequestRecord]) -> None:
    before = result(requests)
    assert RunResult.from_json(json.loads(json.dumps(before.to_json(), allow_nan=False))) == before


def test_a_file_without_details_has_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    before = result([RequestRecord(0, sent=0.0, first=0.1, finished=0.2)])
    write_result(path, before, detailed=False)
    after = read_result(path)
    assert after.requests == []
    assert after.summary == before.summary


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "serve", "schema": 1}', '{"kind": "throughput"}'])
def test_what_is_no_result_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"^run\.json"):
        read_result(path)


def answered(**fields: Any) -> RequestRecord:
    known = {"scheduled": 1.0, "sent": 1.5, "first": 2.0, "finished": 4.0, "output_tokens": 5}
    return RequestRecord(0, **known | {"chunks": [2.0, 2.5, 4.0]} | fields)


def test_latencies_are_counted_from_sending() -> None:
    record = answered()
    assert (record.delay, record.ttft, record.e2el, record.tpot) == (0.5, 0.5, 2.5, 0.5)
    assert record.gaps == [0.5, 1.5]
    assert answered(output_tokens=1).tpot is None
    assert answered(first=None).ttft is None
    assert RequestRecord(0).e2el is None


def test_good_is_answered_within_every_limit() -> None:
    assert answered().good(Limits())
    assert answered().good(Limits(ttft=500, tpot=500, e2el=2500))
    for limits in (Limits(ttft=499), Limits(tpot=499), Limits(e2el=2499)):
        assert not answered().good(limits)
    assert not answered(error="timeout").good(Limits())
    assert answered(output_tokens=1).good(Limits(tpot=1)), "there is no second token to be late"
