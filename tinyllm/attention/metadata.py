"""What attention needs to know about a step's flat batch, and what an attention backend must do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

__all__ = ["AttentionBackend", "AttentionMetadata", "KVCacheSpec", "LayerKVCache"]

LayerKVCache = Any
"""One layer's keys and values. Its layout is private to the backend: to everyone else a block is an id."""


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """Shape of the physical KV cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    """Tokens a block holds."""
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class AttentionMetadata:
    """A flat batch: sequence i owns rows ``query_start_loc[i]:query_start_loc[i + 1]``.

    Its rows are the last of its ``seq_lens[i]`` tokens, so they stand at positions
    ``seq_lens[i] - query_len`` up to ``seq_lens[i] - 1``, and each attends to itself and all before it.
    A backend may extend this with what it computes once a step for all layers.
    """

    query_start_loc: Sequence[int]
    """``[num_seqs + 1]``"""
    seq_lens: Sequence[int]
    """``[num_seqs]``: tokens in the KV cache when this step's own are stored."""
    block_tables: Sequence[Sequence[int]]
    """``[num_seqs][num_blocks]``: the blocks that hold tokens 0, 1, ... of each sequence, in order."""
    slot_mapping: torch.Tensor
    """int64 ``[num_tokens]``: ``block_id * block_size + offset`` where each row's K and V are stored."""


class AttentionBackend(Protocol):
    """Stores K and V in blocks, and attends to them. Pure in its arguments but for the cache.

    A row's result depends on its own sequence only, bit for bit: not on batch mates, on how the sequence
    was cut into steps, nor on which blocks hold it.
    """

    name: str

    def cannot_run(self, spec: KVCacheSpec) -> str | None:
        """Say why this backend cannot serve ``spec``, or None if it can."""
        ...

    def bytes_per_block(self, spec: KVCacheSpec) -> int:
        """Memory of one block over all layers, keys and values."""
        ...

    def allocate(self, spec: KVCacheSpec, num_blocks: int) -> list[LayerKVCache]:
        """Return the cache of each layer, filled with zeros. Raises `ConfigError` if it cannot run."""
        ...

    def build_metadata(
        self,
        spec: KVCacheSpec,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
    ) -> AttentionMetadata:
        """Compute what every layer of a step shares."""
        ...

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: LayerKVCache,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        """Store k and v, then attend with q.

        q is ``[num_tokens, num_heads, head_dim]``, k and v are ``[num_tokens, num_kv_heads, head_dim]``.
        Returns ``[num_tokens, num_heads, head_dim]`` in q's dtype.
        """
        ...
