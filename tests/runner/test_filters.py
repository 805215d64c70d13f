"""Each filter against transformers' own, and the short cuts against looking at everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from tests.runner.fakes import make_request
from tinyllm.params import SamplingParams
from tinyllm.runner import filters
from tinyllm.runner.filters import (
    apply_filters,
    can_narrow,
    min_p,
    narrow,
    row_sum,
    top_k,
    top_p,
    typical_p,
    weights_of,
)

Filtered = Callable[[torch.Tensor, Sequence[float]], torch.Tensor]


def scores_of(rows: int, width: int, *, spread: float = 3.0, seed: int = 0) -> torch.Tensor:
    """Return random scores as filters get them: the best is 0."""
    logits = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * spread
    return logits - logits.amax(dim=-1, keepdim=True)


def params(**options: Any) -> SamplingParams:
    return make_request(temperature=1.0, **options).params


def kept(scores: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in scores]


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("width", [7, 300, 5000])
@pytest.mark.parametrize(
    ("ours", "warper", "settings"),
    [
        (top_k, "TopKLogitsWarper", [1, 2, 5, 50, 1500, 4999, 10_000]),
        (top_p, "TopPLogitsWarper", [1e-4, 0.1, 0.5, 0.9, 0.99, 0.999, 0.25]),
        (min_p, "MinPLogitsWarper", [1e-4, 0.01, 0.05, 0.1, 0.5, 0.9, 1.0]),
        (typical_p, "TypicalLogitsWarper", [1e-4, 0.1, 0.2, 0.5, 0.9, 0.95, 0.99]),
    ],
)
def test_same_tokens_as_transformers(
    ours: Filtered, warper: str, settings: list[float], width: int, spread: float
) -> None:
    from transformers.generation import logits_process

    scores = scores_of(len(settings), width, spread=spread, seed=width)
    theirs = torch.cat(
        [
            getattr(logits_process, warper)(setting)(torch.zeros(1, 1, dtype=torch.int64), row[None])
            for setting, row in zip(settings, scores, strict=True)
        ]
    )
    result = ours(scores, settings)
    assert kept(result) == kept(theirs)
    assert torch.equal(result[result.isfinite()], scores[result.isfinite()])


def test_filters_together_are_transformers_warpers_in_its_order() -> None:
    from transformers.generation import logits_process as theirs

    scores = scores_of(20, 2000, spread=2.0, seed=5)
    expected = scores
    for warper in (
        theirs.TopKLogitsWarper(100),
        theirs.TopPLogitsWarper(0.9),
        theirs.MinPLogitsWarper(0.02),
        theirs.TypicalLogitsWarper(0.8),
    ):
        expected = warper(torch.zeros(20, 1, dtype=torch.int64), expected)
    result = apply_filters(scores, [params(top_k=100, top_p=0.9, min_p=0.02, typical_p=0.8)] * 20)
    assert kept(result) == kept(expected)
    assert {len(row) for row in kept(result)} != {100}


def test_rows_of_a_batch_keep_their_own_settings() -> None:
    options: list[dict[str, Any]] = [
        {},
        {"top_k": 5},
        {"top_p": 0.5},
        {"min_p": 0.2},
        {"typical_p": 0.4},
        {"top_k": 9, "min_p": 0.1},
    ]
    every = [params(**each) for each in options]
    scores = scores_of(len(every), 3000, seed=7)
    together = apply_filters(scores, every)
    for row, each in enumerate(every):
        assert torch.equal(together[row : row + 1], apply_filters(scores[row : row + 1], [each]))
    assert torch.equal(together[0], scores[0])


@pytest.mark.parametrize("values", ["distinct", "ties"])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("ours", [top_p, typical_p])
def test_looking_at_the_best_few_finds_what_a_whole_sort_finds(
    ours: Filtered, spread: float, values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = scores_of(12, 6000, spread=spread, seed=11)
    if values == "ties":
        scores = (scores * 8).round() / 8
    settings = [0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.9999]
    results = []
    for widths in ((256,), (1,), (8, 9, 1000), ()):
        monkeypatch.setattr(filters._smallest_set, "__defaults__", (widths,))
        results.append(ours(scores, settings))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_smallest_set_takes_lower_ids_first_among_equals() -> None:
    scores = torch.zeros(1, 1000)
    assert kept(top_p(scores, [0.01])) == [list(range(10))]
    assert kept(typical_p(scores, [0.01])) == [list(range(10))]


def test_top_k_keeps_what_is_as_likely_as_the_kth() -> None:
    scores = torch.tensor([[0.0, -1.0, -1.0, -1.0, -2.0]])
    assert kept(top_k(scores, [2])) == [[0, 1, 2, 3]]


@pytest.mark.parametrize("spread", [0.2, 3.0])
@pytest.mark.parametrize("ties", [False, True])
def test_narrow_rows_are_whole_rows_bit_for_bit(spread: float, ties: bool) -> None:
    scores = scores_of(64, 4000, spread=spread, seed=13)
    if ties:
        scores = (scores * 16).round() / 16
    scores[0, 3:] = -math.inf  # fewer tokens are left than top_k would keep
    every = [params(top_k=1 + row, top_p=0.9, min_p=0.001, typical_p=0.95) for row in range(64)]
    assert all(can_narrow(each, 4000) for each in every)
    found, ids, complete = narrow(scores, every)
    narrowed, whole = apply_filters(found, every), apply_filters(scores, every)
    for row in range(64):
        if complete[row]:
            tokens = whole[row].isfinite().nonzero().flatten()
            inside = narrowed[row].isfinite()
            assert torch.equal(ids[row][inside], tokens)
            assert torch.equal(narrowed[row][inside], whole[row][tokens])
            assert torch.equal(
                row_sum(weights_of(narrowed[row : row + 1])), row_sum(weights_of(whole[row : row + 1]))
            )
    assert complete[0]
    assert complete.all() or ties


def test_narrow_says_so_when_equal_tokens_are_outside() -> None:
    scores = torch.zeros(2, 1000)
    scores[1, 10:] = -1.0
    _, _, complete = narrow(scores, [params(top_k=10), params(top_k=10)])
    assert complete.tolist() == [False, True]


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "typical_p"])
def test_a_row_alone_and_among_others_is_the_same_bit_for_bit(name: str) -> None:
    setting = 50 if name == "top_k" else 0.3
    scores = scores_of(33, 49_152, spread=2.0, seed=17)
    together = apply_filters(scores, [params(**{name: setting})] * 33)
    for row in (0, 5, 32):
        assert torch.equal(
            together[row], apply_filters(scores[row : row + 1], [params(**{name: setting})])[0]
        )


def test_at_least_one_token_is_always_left() -> None:
    scores = torch.full((4, 500), -math.inf)
    scores[:, 77] = 0.0
    every = [params(top_k=1), params(top_p=1e-9), params(min_p=1.0), params(typical_p=1e-9)]
    assert kept(apply_filters(scores, every)) == [[77]] * 4


@pytest.mark.parametrize("lowest", [10.0, 75.0, 100.0, 1000.0])
def test_weights_do_not_depend_on_their_place(lowest: float) -> None:
    scores = -torch.rand(7, 5003, generator=torch.Generator().manual_seed(1)) * lowest
    scores[:, ::50] = -math.inf
    weights = weights_of(scores)
    expected = scores.double().exp()
    expected[expected < 1e-34] = 0
    torch.testing.assert_close(weights.double(), expected, rtol=1e-6, atol=1e-34)
    for row in range(7):
        assert torch.equal(weights_of(scores[row : row + 1])[0], weights[row])
    for width in (1, 2, 7, 15, 16, 17, 63, 128, 200):
        ids = torch.randint(0, 5003, (7, width), generator=torch.Generator().manual_seed(width))
        assert torch.equal(weights_of(scores.gather(1, ids)), weights.gather(1, ids))


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_of_a_row_do_not_depend_on_the_others(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = weights_of(-80 * torch.rand(9, 49_153, generator=torch.Generator().manual_seed(2)))
        sums = row_sum(values)
        assert all(torch.equal(row_sum(values[row : row + 1])[0], sums[row]) for row in range(9))
        spread_out = torch.zeros(9, 3 * 49_153)
        spread_out[:, ::3] = values
        assert torch.equal(row_sum(spread_out), sums)
    finally:
        torch.set_num_threads(before)
