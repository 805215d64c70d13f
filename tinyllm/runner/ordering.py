"""The one order of tokens: larger value first, and among equal values the lower id. Without full sorts.

`torch.topk` says nothing about the order of equal values, nor which of them it takes at its edge, and
logits that were bfloat16 have many. Here the answer is always the one that a stable sort of the whole row
gives, and a row's answer does not depend on the rows beside it.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

__all__ = ["best_first", "largest"]

_MARGIN: Final = 64
"""Candidates taken beyond those asked for, so that equal values at the edge are rarely cut."""


def best_first(keys: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return ``(keys, ids)``, both ``[rows, width]``: the largest keys of each row, in order.

    Among keys equal to the last one, it is open which are there, unless ``width`` is the whole row.
    """
    if width >= keys.shape[-1]:
        ordered, ids = keys.sort(dim=-1, descending=True, stable=True)
        return ordered, ids
    found, ids = keys.topk(width, dim=-1)
    ids, by_id = ids.sort(dim=-1)
    ordered, by_key = found.gather(1, by_id).sort(dim=-1, descending=True, stable=True)
    return ordered, ids.gather(1, by_key)


def largest(keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return ``(keys, ids)``, both ``[rows, count]``: exactly the first ``count`` of each row's order."""
    width = min(count + _MARGIN, keys.shape[-1])
    found, ids = best_first(keys, width)
    top, top_ids = found[:, :count], ids[:, :count]
    if count == 0 or width == keys.shape[-1]:
        return top, top_ids
    cut = (found[:, count - 1] == found[:, -1]).nonzero().flatten()
    if cut.numel():
        exact, exact_ids = best_first(keys[cut], keys.shape[-1])
        top, top_ids = top.clone(), top_ids.clone()
        top[cut], top_ids[cut] = exact[:, :count], exact_ids[:, :count]
    return top, top_ids
