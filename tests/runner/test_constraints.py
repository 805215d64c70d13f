"""What a request may take: allowed ids, bad words, biases, and ends that come too early."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runner.fakes import CPU, make_request
from tinyllm.core.request import Request
from tinyllm.runner.constraints import LogitsEdit, allowed_token_ids, bad_words, logit_bias, min_tokens

Option = Callable[[Request, int, torch.device], LogitsEdit | None]


def edited(option: Option, request: Request, vocab_size: int = 10) -> list[float]:
    """Return zeros as the option's edit leaves them."""
    edit = option(request, vocab_size, CPU)
    assert edit is not None
    logits = torch.zeros(vocab_size)
    edit(logits, request)
    values: list[float] = logits.tolist()
    return values


def forbidden(option: Option, request: Request) -> set[int]:
    return {token for token, value in enumerate(edited(option, request)) if value == -math.inf}


@pytest.mark.parametrize("option", [allowed_token_ids, bad_words, logit_bias, min_tokens])
def test_off_is_nothing(option: Option) -> None:
    assert option(make_request(), 10, CPU) is None


@pytest.mark.parametrize(
    ("option", "options"),
    [
        (allowed_token_ids, {"allowed_token_ids": [3, 999_999]}),
        (bad_words, {"bad_words": ((3,), (999_999,), (999_999, 4), ())}),
        (logit_bias, {"logit_bias": {"3": 5.0, "999999": 5.0}}),
        (min_tokens, {"min_tokens": 2, "stop_token_ids": [3, 999_999]}),
    ],
)
def test_d26_ids_outside_the_vocabulary_do_nothing(option: Option, options: dict[str, Any]) -> None:
    assert len(edited(option, make_request(**options))) == 10


def test_only_allowed_tokens_keep_their_logits() -> None:
    request = make_request(allowed_token_ids=[7, 2, 7])
    edit = allowed_token_ids(request, 10, CPU)
    assert edit is not None
    logits = torch.arange(10.0)
    edit(logits, request)
    assert logits[[2, 7]].tolist() == [2.0, 7.0]
    assert logits.isfinite().sum() == 2


def test_no_allowed_token_in_the_vocabulary_leaves_none() -> None:
    assert forbidden(allowed_token_ids, make_request(allowed_token_ids=[99])) == set(range(10))


def test_biases_are_added() -> None:
    values = edited(logit_bias, make_request(logit_bias={"5": 2.5, "1": -100.0}))
    assert values == [0, -100.0, 0, 0, 0, 2.5, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], {9}),
        ([4], {9, 5}),
        ([4, 5], {9, 6}),
        ([5], {9}),  # the prompt ends with 4, but bad words are of the output
        ([1, 4, 5], {9, 6}),
        ([4, 5, 4], {9, 5}),
        ([5, 4, 4], {9, 5}),
        ([4, 5, 7], {9}),
    ],
)
def test_the_last_token_of_a_bad_word_is_forbidden_after_the_others(
    output: list[int], expected: set[int]
) -> None:
    request = make_request(prompt=[3, 4], output=output, bad_words=((9,), (4, 5), (4, 5, 6)))
    assert forbidden(bad_words, request) == expected


@pytest.mark.parametrize("num_output", range(6))
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_d18_d20_no_end_before_min_tokens_of_output(num_output: int, ignore_eos: bool) -> None:
    request = make_request(
        prompt=[1] * 100,
        output=[7] * num_output,
        eos=(0, 2),
        min_tokens=4,
        stop_token_ids=[8],
        ignore_eos=ignore_eos,
    )
    assert forbidden(min_tokens, request) == ({0, 2, 8} if num_output < 4 else set())
