"""Filters: which tokens stay in the draw. Each is one function, applied in the order of `FILTERS`.

A filter takes scores ``[rows, width]`` (logits over temperature; the best is 0, -inf is out) and one
setting per row, and returns scores with more tokens out. Order and meaning are those of ``transformers``
and vLLM: each filter sees the distribution that the ones before it left, as if renormalised.

``width`` is the whole vocabulary or the few candidates that `narrow` found, and the tokens kept are the
same, bit for bit. That is so because sums are running sums (`row_sum`): tokens that are out add exact
zeros and the others keep their order. For that reason too, and because `torch.sum` splits one long row
among threads but not many rows, a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional as F

from tinyllm.params import SamplingParams
from tinyllm.runner.ordering import best_first, kth_largest

__all__ = ["FILTERS", "Filter", "apply_filters", "can_narrow", "narrow", "row_sum", "weights_of"]

_MAX_NARROW_TOP_K: Final = 64
_NARROW_WIDTH: Final = 128
_SEARCH_WIDTHS: Final = (256,)
"""How many of the best tokens are looked at, in turn, before a row is sorted whole."""


def top_k(scores: Tensor, settings: Sequence[float]) -> Tensor:
    """Keep the k most likely tokens, and any that are as likely as the last of them."""
    counts = [min(int(k), scores.shape[-1]) for k in settings]
    last = torch.stack([kth_largest(row, count) for row, count in zip(scores, counts, strict=True)])
    return scores.where(scores >= last.unsqueeze(1), -math.inf)


def top_p(scores: Tensor, settings: Sequence[float]) -> Tensor:
    """Keep the smallest set of most likely tokens whose probability reaches this (Holtzman et al., 2020)."""
    return _smallest_set(scores, scores, _mass(scores, settings))


def min_p(scores: Tensor, settings: Sequence[float]) -> Tensor:
    """Keep the tokens at least this share as likely as the most likely one (Nguyen et al., 2024)."""
    share = torch.tensor(settings, dtype=scores.dtype, device=scores.device).unsqueeze(1)
    return scores.where(scores >= scores.amax(dim=-1, keepdim=True) + share.log(), -math.inf)


def typical_p(scores: Tensor, settings: Sequence[float]) -> Tensor:
    """Keep the tokens whose surprise is nearest the entropy, up to this mass (Meister et al., 2023).

    Surprise and entropy share the log of the total, so their distance is that of a score from the mean.
    """
    weights = weights_of(scores)
    mean = row_sum(torch.where(weights > 0, weights * scores, 0.0)) / row_sum(weights)
    return _smallest_set(scores, -(scores - mean.to(scores.dtype)).abs(), _mass(scores, settings))


@dataclass(frozen=True, slots=True)
class Filter:
    """A field of `SamplingParams`, the value at which it does nothing, and what it does."""

    field: str
    off: float
    function: Callable[[Tensor, Sequence[float]], Tensor]


FILTERS: Final = (
    Filter("top_k", 0, top_k),
    Filter("top_p", 1, top_p),
    Filter("min_p", 0, min_p),
    Filter("typical_p", 1, typical_p),
)


def apply_filters(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return scores in which every token that a row's filters drop is -inf. At least one stays."""
    for item in FILTERS:
        settings: list[float] = [getattr(each, item.field) for each in params]
        rows = [row for row, setting in enumerate(settings) if setting != item.off]
        if len(rows) == len(settings):
            scores = item.function(scores, settings)
        elif rows:
            scores = scores.clone()
            scores[rows] = item.function(scores[rows], [settings[row] for row in rows])
    return scores


def can_narrow(params: SamplingParams, width: int) -> bool:
    """Whether top_k leaves so few tokens that `narrow` should be tried."""
    return params.top_k is not None and 0 < params.top_k <= _MAX_NARROW_TOP_K and width > _NARROW_WIDTH


def narrow(scores: Tensor, params: Sequence[SamplingParams]) -> tuple[Tensor, Tensor, Tensor]:
    """Cut rows down to the few tokens that top_k could keep.

    Returns their scores and ids, both ``[rows, 128]``, ids ascending, and a bool ``[rows]``: False where
    tokens outside are as likely as the k-th, so that the row has to be looked at whole.
    """
    found, ids = scores.topk(_NARROW_WIDTH, dim=-1)
    counts = torch.tensor([each.top_k for each in params], device=scores.device)
    last = found.gather(1, counts.unsqueeze(1) - 1)
    complete = (last > found[:, -1:]) | (last == -math.inf)
    ids, by_id = ids.sort(dim=-1)
    return found.gather(1, by_id), ids, complete.squeeze(1)


def weights_of(scores: Tensor) -> Tensor:
    """Return e to the power of ``scores``, and 0 below 1e-34.

    No draw reaches that far (a uniform number has 53 bits), but results near the end of float32's range
    make the exponential up to ten times slower.
    """
    return F.threshold(F.threshold(scores, -80.0, -80.0).exp_(), 1e-34, 0.0)


def row_sum(values: Tensor) -> Tensor:
    """Return float64 sums ``[rows, 1]``, added in order of column; see the top of this file."""
    return values.cumsum(dim=-1, dtype=torch.float64)[:, -1:]


def _mass(scores: Tensor, shares: Sequence[float]) -> Tensor:
    """Return ``[rows, 1]``: these shares of each row's total weight."""
    wanted = torch.tensor(shares, dtype=torch.float64, device=scores.device)
    return wanted.unsqueeze(1) * row_sum(weights_of(scores))


def _smallest_set(
    scores: Tensor, keys: Tensor, mass: Tensor, search_widths: Sequence[int] = _SEARCH_WIDTHS
) -> Tensor:
    """Keep each row's tokens with the largest keys, lower ids first, until their weight reaches ``mass``.

    Looks at the best few and answers the rows where that is enough: the mass is reached, by a token that
    does not tie with those not looked at. The others look further, in the end at the whole row.
    """
    width = min(search_widths[0], scores.shape[-1]) if search_widths else scores.shape[-1]
    found, ids = best_first(keys, width)
    candidates = scores.gather(1, ids)
    last = (weights_of(candidates).cumsum(dim=-1, dtype=torch.float64) < mass).sum(dim=-1, keepdim=True)
    within = torch.arange(width, device=scores.device) <= last
    kept = torch.full_like(scores, -math.inf).scatter_(1, ids, candidates.where(within, -math.inf))
    if width == scores.shape[-1]:
        return kept
    edge = found.gather(1, last.clamp(max=width - 1))
    answered = (last < width) & (edge > found[:, -1:])
    rows = (~answered).squeeze(1).nonzero().flatten()
    if rows.numel():
        kept[rows] = _smallest_set(scores[rows], keys[rows], mass[rows], search_widths[1:])
    return kept
