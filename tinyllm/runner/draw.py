"""Drawing: from rows of logits, one uniform number each, to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from tinyllm.params import SamplingParams
from tinyllm.runner.filters import apply_filters, can_narrow, narrow, weights_of

__all__ = ["draw"]

_MAX_TEMPERATURE: Final = 1e30
"""Beyond any use: all tokens are equally likely long before. Keeps -inf / temperature from being NaN."""
_MAX_ELEMENTS: Final = 1 << 18
"""Logits that are worked on at once: larger temporaries would be given back to the system each time."""


def draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """Draw a token id for each row of ``logits``, float32 ``[rows, vocab_size]`` with a finite maximum."""
    tokens: list[int] = []
    step = max(1, _MAX_ELEMENTS // logits.shape[-1])
    for first in range(0, len(params), step):
        some = slice(first, first + step)
        tokens += _draw(logits[some], params[some], uniforms[some])
    return tokens


def _draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> list[int]:
    """Draw for a few rows.

    The best logit is taken off before dividing, so that no temperature can overflow. Rows with a small
    top_k are drawn from a few candidates, the others from the whole vocabulary; either way ids stand in
    ascending order, and the same number draws the same token.
    """
    divisors = [min(each.temperature or 1.0, _MAX_TEMPERATURE) for each in params]
    scores = logits - logits.amax(dim=-1, keepdim=True)
    scores /= torch.tensor(divisors, dtype=scores.dtype, device=scores.device).unsqueeze(1)
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=scores.device)
    tokens = torch.empty(len(params), dtype=torch.int64, device=scores.device)

    narrowed = [row for row, each in enumerate(params) if can_narrow(each, scores.shape[-1])]
    whole = [row for row, each in enumerate(params) if not can_narrow(each, scores.shape[-1])]
    if narrowed:
        own = [params[row] for row in narrowed]
        found, ids, complete = narrow(_rows(scores, narrowed), own)
        places = _inverse_cdf(apply_filters(found, own), numbers[narrowed])
        tokens[narrowed] = ids.gather(1, places).squeeze(1)
        whole += [
            row for row, is_complete in zip(narrowed, complete.tolist(), strict=True) if not is_complete
        ]
        whole.sort()
    if whole:
        filtered = apply_filters(_rows(scores, whole), [params[row] for row in whole])
        tokens[whole] = _inverse_cdf(filtered, numbers[whole]).squeeze(1)
    drawn: list[int] = tokens.tolist()
    return drawn


def _rows(values: Tensor, rows: Sequence[int]) -> Tensor:
    """Return these rows, ascending, without a copy when they are all of them."""
    return values if len(rows) == len(values) else values[rows]


def _inverse_cdf(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Return ``[rows, 1]``: the column where the running sum of weights passes the uniform's share."""
    mass = weights_of(scores).cumsum(dim=-1, dtype=torch.float64)
    target = uniforms.unsqueeze(1) * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True).clamp_(max=scores.shape[-1] - 1)
