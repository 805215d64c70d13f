"""Events come out whole however the bytes were cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.bench.serve import events
from tinyllm.bench.serve.events import EventError, EventParser

PAYLOADS = st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=8)


def parse(data: bytes, cuts: list[int]) -> list[bytes]:
    parser = EventParser()
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [event for start, end in itertools.pairwise(places) for event in parser.feed(data[start:end])]


@given(PAYLOADS, st.lists(st.integers(0, 300)), st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_they_are_cut(payloads: list[str], cuts: list[int], end: str) -> None:
    data = "".join(f"data: {payload}{end}{end}" for payload in payloads).encode()
    assert parse(data, cuts) == [payload.encode() for payload in payloads]


@given(st.lists(st.integers(0, 120)))
def test_comments_and_other_fields_are_skipped(cuts: list[int]) -> None:
    data = b": ping\n\nevent: message\nid: 7\ndata:no space\n\n: ping 2\r\n\r\ndata: a\ndata: b\n\n"
    assert parse(data, cuts) == [b"no space", b"a\nb"]


def test_an_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 100)
    parser = EventParser()
    parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventError):
        parser.feed(b"x" * 90)


def test_the_rest_waits_for_its_end() -> None:
    parser = EventParser()
    assert parser.feed(b'data: {"a"') == []
    assert parser.feed(b": 1}\n") == []
    assert [json.loads(event) for event in parser.feed(b"\n")] == [{"a": 1}]
