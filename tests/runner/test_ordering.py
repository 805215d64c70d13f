"""The order of tokens, with many equal values, against a plain sort."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyllm.runner.ordering import best_first, kth_largest, largest


def in_order(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 400), st.integers(1, 5), st.integers(1, 30), st.data())
def test_largest_is_the_beginning_of_a_stable_sort(
    seed: int, width: int, rows: int, distinct: int, data: st.DataObject
) -> None:
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(-distinct, distinct + 1, (rows, width), generator=generator) / 4
    count = data.draw(st.integers(0, width))
    values, ids = largest(keys, count)
    for row in range(rows):
        expected = in_order(keys[row].tolist())[:count]
        assert ids[row].tolist() == expected
        assert values[row].tolist() == keys[row][expected].tolist()


@pytest.mark.parametrize("where", ["first", "last", "mixed"])
@pytest.mark.parametrize("equal", [300, 5000])
def test_largest_takes_the_lowest_of_many_equal_ids_at_its_edge(equal: int, where: str) -> None:
    keys = torch.zeros(equal + 50)
    better = {"first": slice(0, 50), "last": slice(equal, None), "mixed": slice(7, None, len(keys) // 50)}[
        where
    ]
    keys[better] = 1.0
    _, ids = largest(keys[None], 70)
    assert ids[0].tolist() == in_order(keys.tolist())[:70]


def test_best_first_of_everything_is_a_stable_sort() -> None:
    keys = torch.tensor([[1.0, 3.0, 3.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    values, ids = best_first(keys, 5)
    assert ids.tolist() == [[1, 2, 3, 0, 4], [0, 1, 2, 3, 4]]
    assert values.tolist() == [[3.0, 3.0, 2.0, 1.0, 1.0], [0.0] * 5]


def test_zeros_of_either_sign_are_equal_and_infinities_are_ends() -> None:
    keys = torch.tensor([[-0.0, 1e-45, 0.0, -1e-45, -torch.inf, -0.0, torch.inf, -3e38, 3e38]])
    _, ids = best_first(keys, 9)
    assert ids.tolist() == [[6, 8, 1, 0, 2, 5, 3, 7, 4]]


@pytest.mark.parametrize("count", [1, 2, 5, 10])
def test_kth_largest(count: int) -> None:
    keys = torch.tensor([3.0, -1.0, 3.0, 0.5, -torch.inf, 7.0, 7.0, 2.0, -8.0, 0.0])
    assert kth_largest(keys, count).item() == sorted(keys.tolist(), reverse=True)[count - 1]


@pytest.mark.parametrize("width", [1, 7, 64, 299])
def test_best_first_orders_what_it_finds(width: int) -> None:
    keys = torch.randint(0, 40, (4, 300), generator=torch.Generator().manual_seed(3)).float()
    values, ids = best_first(keys, width)
    for row in range(4):
        found = ids[row].tolist()
        assert found == sorted(found, key=lambda i: (-keys[row, i].item(), i))
        assert values[row].tolist() == keys[row].sort(descending=True).values[:width].tolist()
