"""Drawing: the right distribution, for any temperature, the same alone and in a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.runner.fakes import make_request
from tinyllm.params import SamplingParams
from tinyllm.runner import draw as draw_file
from tinyllm.runner.draw import draw
from tinyllm.runner.rng import uniform


def params(**options: Any) -> SamplingParams:
    options.setdefault("temperature", 1.0)
    return make_request(**options).params


def random_logits(rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def chi_square(drawn: Sequence[int], probabilities: Sequence[float]) -> float:
    total = len(drawn)
    counts = [drawn.count(token) for token in range(len(probabilities))]
    expected = [total * p for p in probabilities]
    return sum((n - e) ** 2 / e for n, e in zip(counts, expected, strict=True) if e > 0)


@pytest.mark.parametrize(
    ("options", "probabilities"),
    [
        ({}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 0.5}, [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        ({"temperature": 1e20}, [0.25, 0.25, 0.25, 0.25]),
        ({"top_k": 2}, [4 / 7, 3 / 7, 0.0, 0.0]),
        ({"top_p": 0.8}, [4 / 9, 3 / 9, 2 / 9, 0.0]),
        ({"min_p": 0.6}, [4 / 7, 3 / 7, 0.0, 0.0]),
        ({"typical_p": 0.4}, [0.0, 3 / 5, 2 / 5, 0.0]),
    ],
)
@pytest.mark.parametrize("padding", [0, 300])
def test_tokens_come_as_often_as_they_should(
    options: dict[str, float], probabilities: list[float], padding: int
) -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1] + [0.0] * padding]).log()
    rows = 4000
    numbers = [uniform(9, 0, position) for position in range(rows)]
    drawn = draw(logits.expand(rows, -1), [params(**options)] * rows, numbers)
    assert {token for token in range(4) if probabilities[token] > 0} == set(drawn)
    assert chi_square(drawn, probabilities + [0.0] * padding) < 16.3  # 3 degrees of freedom, p = 0.001


def test_the_number_says_which_share_of_the_mass_is_passed() -> None:
    logits = torch.tensor([[0.5, 0.0, 0.25, 0.25]]).log()
    for number, token in [(0.0, 0), (0.499, 0), (0.5, 2), (0.749, 2), (0.75, 3), (1 - 2**-53, 3)]:
        assert draw(logits, [params()], [number]) == [token]


def test_tiny_probabilities_add_up() -> None:
    logits = torch.full((1, 100_001), -17.0)  # the others together have 0.4 % of the mass
    logits[0, 0] = 0.0
    each = torch.tensor(-17.0).exp().item()
    beyond_the_first = 0.998 * (1 + 100_000 * each) - 1
    assert draw(logits.expand(2, -1), [params()] * 2, [0.9958, 0.998]) == [
        0,
        1 + int(beyond_the_first / each),
    ]


@pytest.mark.parametrize("temperature", [2e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
def test_d24_small_temperatures_are_finite_and_greedy(temperature: float, scale: float) -> None:
    logits = random_logits(20, 5000, seed=3) * scale
    numbers = [uniform(1, 0, row) for row in range(20)]
    assert draw(logits, [params(temperature=temperature)] * 20, numbers) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize(
    "option", [{"top_p": 1e-4}, {"min_p": 1.0}, {"top_k": 1}, {"top_p": 1e-4, "top_k": 40}]
)
def test_d24_the_tightest_filters_are_greedy(option: dict[str, float]) -> None:
    logits = random_logits(20, 5000, seed=4)
    numbers = [uniform(1, 0, row) for row in range(20)]
    assert draw(logits, [params(**option)] * 20, numbers) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize("temperature", [1.5e-5, 1.0, 1e38, 1e300])
def test_tokens_that_are_out_are_never_drawn(temperature: float) -> None:
    logits = torch.full((50, 400), -math.inf)
    logits[:, [3, 200]] = torch.tensor([1.0, 1.0])
    numbers = [row / 50 for row in range(50)]
    assert set(draw(logits, [params(temperature=temperature)] * 50, numbers)) == {3, 200}


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_few_candidates_and_the_whole_row_draw_the_same(
    bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = random_logits(60, 20_000, seed=6)
    logits = logits.bfloat16().float() if bfloat16 else logits
    every = [params(top_k=1 + row, top_p=0.5 + row / 200) for row in range(60)]
    numbers = [uniform(4, 0, row) for row in range(60)]
    narrowed = draw(logits, every, numbers)
    monkeypatch.setattr(draw_file, "can_narrow", lambda params, width: False)
    assert draw(logits, every, numbers) == narrowed


def test_rows_that_turn_out_to_need_a_whole_look_keep_their_place() -> None:
    logits = torch.zeros(2, 1000)  # as likely as each other: the candidates of top_k are not enough
    logits[1, 7] = 50.0
    assert draw(logits, [params(top_k=5), params()], [0.9, 0.9]) == [900, 7]


MIXED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"top_k": 20, "top_p": 0.95},
    {"top_k": 3000},
    {"top_p": 0.9},
    {"top_p": 0.9999, "temperature": 3.0},
    {"min_p": 0.05},
    {"typical_p": 0.7},
]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_alone_and_with_any_mates_draws_the_same(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = 2 * len(MIXED)
        every = [params(**MIXED[row % len(MIXED)]) for row in range(rows)]
        logits = random_logits(rows, 49_152, seed=8)
        numbers = [uniform(5, 0, row) for row in range(rows)]
        together = draw(logits, every, numbers)
        for row in range(len(MIXED)):
            assert draw(logits[row : row + 1], [every[row]], [numbers[row]]) == [together[row]]
        some = [15, 3, 11, 4, 5]
        assert draw(logits[some], [every[r] for r in some], [numbers[r] for r in some]) == [
            together[row] for row in some
        ]
    finally:
        torch.set_num_threads(before)
