"""The native search and PyTorch's find the same."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.runner import largest as module
from tinyllm.runner.largest import largest

SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 3.0e38]


@settings(max_examples=60)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    seed=st.integers(0, 2**31),
    special=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 299), st.sampled_from(SPECIAL)), max_size=8),
    levels=st.sampled_from([2, 5, 1000]),
)
def test_equals_pytorch(
    rows: int, columns: int, seed: int, special: list[tuple[int, int, float]], levels: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-levels, levels, (rows, columns + 3), generator=generator).float()
    for row, column, value in special:
        logits[row % rows, column % columns] = value
    view = logits[:, :columns]  # rows that do not touch
    values, places = largest(view)
    expected_values, expected_places = view.max(dim=-1)
    for row in range(rows):
        expected = expected_values[row].item()
        assert values[row] == expected or (math.isnan(values[row]) and math.isnan(expected))
        if not math.isnan(expected):
            assert places[row] == expected_places[row].item()


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_native", lambda: None)
    assert largest(torch.tensor([[1.0, 5.0, 5.0], [math.nan, 2.0, 3.0]]))[1][0] == 1
    assert math.isnan(largest(torch.tensor([[math.nan, 2.0, 3.0]]))[0][0])


def test_all_minus_infinity_is_the_first() -> None:
    assert largest(torch.full((2, 100), -math.inf)) == ([-math.inf, -math.inf], [0, 0])
