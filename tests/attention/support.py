"""Attention written out in float64, row by row, and a step of any backend to compare with it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from tinyllm.attention.metadata import AttentionBackend, KVCacheSpec

SPEC = KVCacheSpec(
    num_layers=1, num_kv_heads=2, head_dim=20, block_size=16, dtype=torch.float32, device=torch.device("cpu")
)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first: int, scale: float) -> torch.Tensor:
    """Attention of queries at positions first, first + 1, ... over all keys up to their own, in float64."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    rows = []
    for i, query in enumerate(q.double()):
        end = first + i + 1
        weights = torch.softmax(torch.einsum("hd,khd->hk", query, keys[:end]) * scale, dim=-1)
        rows.append(torch.einsum("hk,khd->hd", weights, values[:end]))
    return torch.stack(rows)


def assert_is_exact(
    backend: AttentionBackend,
    spec: KVCacheSpec,
    lengths: Sequence[tuple[int, int]],
    num_heads: int,
    dtype: torch.dtype,
    tolerance: float,
    seed: int,
) -> None:
    """Run sequences with some tokens stored by an earlier step, and some new; compare with `exact`."""
    torch.manual_seed(seed)
    scale = 2.4 * spec.head_dim**-0.5  # scores of one size, whatever that of a head
    totals = [old + new for old, new in lengths]
    blocks = list(range(sum(-(-total // spec.block_size) for total in totals) + 2))
    random.Random(seed).shuffle(blocks)
    tables = [[blocks.pop() for _ in range(-(-total // spec.block_size))] for total in totals]
    (cache,) = backend.allocate(spec, num_blocks=sum(map(len, tables)) + 2)
    q = [torch.randn(total, num_heads, spec.head_dim).to(dtype) for total in totals]
    k, v = (
        [torch.randn(total, spec.num_kv_heads, spec.head_dim).to(dtype) for total in totals] for _ in "kv"
    )

    def step(first: list[int], end: list[int]) -> tuple[torch.Tensor, ...]:
        ran = [i for i in range(len(totals)) if end[i] > first[i]]
        counts = [end[i] - first[i] for i in ran]
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        metadata = backend.build_metadata(spec, starts, [end[i] for i in ran], [tables[i] for i in ran])
        new_q, new_k, new_v = (torch.cat([x[i][first[i] : end[i]] for i in ran]) for x in (q, k, v))
        return torch.split(backend.forward(new_q, new_k, new_v, cache, metadata, scale), counts)

    old = [old for old, _ in lengths]
    if any(old):
        step([0] * len(totals), old)
    for i, result in enumerate(step(old, totals)):
        stored_k, stored_v = k[i].to(spec.dtype), v[i].to(spec.dtype)
        expected = exact(q[i][old[i] :], stored_k, stored_v, old[i], scale)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
