"""Scores: the raw log-softmax of a model's logits, of one token and of the most likely ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tinyllm.core.step import TokenScores
from tinyllm.runner.ordering import largest

__all__ = ["score_tokens"]


def score_tokens(
    logprobs: Tensor, token_ids: Sequence[int], num_top: Sequence[int], vocab_size: int
) -> list[TokenScores]:
    """Score one token per row, with its ``num_top`` most likely alternatives: logprob down, then id up.

    ``logprobs`` is the log-softmax ``[rows, >= vocab_size]`` of the model's own logits, before anything
    was done to them. Ids from ``vocab_size`` on are padding: they have their share of the probability, but
    are no alternatives.
    """
    targets = torch.tensor(token_ids, dtype=torch.int64, device=logprobs.device).unsqueeze(1)
    chosen = logprobs.gather(1, targets).squeeze(1).tolist()
    values, ids = largest(logprobs[:, :vocab_size], min(max(num_top), vocab_size))
    best = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        TokenScores(token, logprob, tuple(zip(row_ids[:count], row_values[:count], strict=True)))
        for token, logprob, count, (row_ids, row_values) in zip(token_ids, chosen, num_top, best, strict=True)
    ]
