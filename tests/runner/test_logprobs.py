"""Scores of tokens and of their alternatives."""

from __future__ import annotations

import math

import torch

from tinyllm.runner.logprobs import score_tokens


def test_chosen_and_best_by_logprob_then_id() -> None:
    logprobs = torch.tensor([[0.1, 0.2, 0.2, 0.4, 0.1], [0.9, 0.05, 0.05, 0.0, 0.0]]).log()
    first, second = score_tokens(logprobs, [4, 0], [3, 2], 5)
    assert (first.token_id, second.token_id) == (4, 0)
    assert first.logprob == logprobs[0, 4].item()
    assert first.top == ((3, logprobs[0, 3].item()), (1, logprobs[0, 1].item()), (2, logprobs[0, 2].item()))
    assert [token for token, _ in second.top] == [0, 1]


def test_no_alternatives_when_none_are_asked_for() -> None:
    assert score_tokens(torch.zeros(1, 5), [2], [0], 5)[0].top == ()


def test_padding_ids_are_no_alternatives_but_a_prompt_may_hold_one() -> None:
    logprobs = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    (scores,) = score_tokens(logprobs, [3], [4], 3)
    assert scores.logprob == logprobs[0, 3].item()
    assert [token for token, _ in scores.top] == [2, 1, 0]


def test_d30_impossible_tokens_score_minus_infinity() -> None:
    logprobs = torch.tensor([[5.0, -math.inf, -math.inf]]).log_softmax(-1)
    (scores,) = score_tokens(logprobs, [1], [2], 3)
    assert scores.logprob == -math.inf
    assert scores.top == ((0, 0.0), (1, -math.inf))
