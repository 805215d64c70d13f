from __future__ import annotations

import threading
from typing import Any

import pytest

from tinyllm.engine.worker import LONG_TEXT, TextWorker, is_long

HALF = "x" * (LONG_TEXT // 2)


@pytest.mark.parametrize(
    "values",
    [
        [HALF * 2 + "x"],
        [[{"role": "user", "content": HALF}], [{"description": HALF}]],
        [[{"content": [{"type": "text", "text": HALF}, {"type": "text", "text": HALF}]}]],
        [[0] * (LONG_TEXT + 1)],
    ],
)
def test_long_texts_are_found(values: list[Any]) -> None:
    assert is_long(*values)


@pytest.mark.parametrize("values", [["x"], [None], [5], [object()], [{"a": [HALF]}, []], [HALF * 2]])
def test_all_else_is_short(values: list[Any]) -> None:
    assert not is_long(*values)


def test_what_contains_itself_is_measured_too() -> None:
    endless: list[Any] = []
    endless += [endless, endless]
    assert is_long(endless)


def test_long_calls_and_short_ones_are_each_called_in_order() -> None:
    worker, leave, done = TextWorker(), threading.Event(), threading.Event()
    got: list[str] = []
    worker.submit(lambda: leave.wait(20), lambda _: got.append("long 1"), long=True)
    worker.submit(lambda: 0, lambda _: got.append("long 2"), long=True)
    worker.submit(lambda: 0, lambda _: done.set(), long=True)
    worker.submit(lambda: 0, lambda _: got.append("short 1"))
    worker.submit(lambda: 0, lambda _: got.append("short 2"))
    worker.submit(lambda: 0, lambda _: leave.set())
    assert done.wait(20)
    worker.stop()
    assert got == ["short 1", "short 2", "long 1", "long 2"]
