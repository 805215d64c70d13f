"""`ReferenceBackend`: attention that anyone can read, and whose rows depend on their own sequence alone.

A matrix product rounds differently for different shapes, so the shapes here follow from a token's position
and from nothing else. The positions of a sequence are cut into tiles of `TILE`, always at the same places,
and the context of a tile is padded to `padded_length` of the tile's end. A step computes every tile that it
has a token of; tokens of that tile which are not in the step are computed too and thrown away. So a token's
scores, softmax and sum come from products of one shape, in one place of it, however the sequence was cut
into steps and whoever shares the batch.

That tiles of one length can be stacked in one `torch.bmm` without changing each other's bits is a property of
the CPU's library, which the tests check. It runs on CUDA too, where nothing promises that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinyllm.attention.memory import lazy_zeros
from tinyllm.attention.metadata import AttentionMetadata, KVCacheSpec

__all__ = ["ReferenceBackend", "ReferenceMetadata", "padded_length"]

TILE = 8
"""Positions whose queries are computed together. More is faster for prompts, less for single tokens."""

STACK_ELEMENTS = 1 << 21
"""Most key elements of tiles that are stacked in one product: bounds the workspace."""


@dataclass(frozen=True, slots=True)
class TileStack:
    """Tiles with contexts of one padded length."""

    rows: torch.Tensor
    """int64 ``[num_tiles * TILE]``: the batch's row of each query; 0 where it is not in this step."""
    slots: torch.Tensor
    """int64 ``[num_tiles * length]``: the slot of each key; that of token 0 past the sequence's end."""
    hidden: torch.Tensor
    """bool ``[num_tiles, 1, TILE, length]``: keys that come after the query."""
    kept: torch.Tensor
    """int64: which of ``rows`` are in this step."""
    kept_rows: torch.Tensor
    """int64: ``rows[kept]``."""


@dataclass(frozen=True)
class ReferenceMetadata(AttentionMetadata):
    """A step's batch, and its tiles."""

    stacks: Sequence[TileStack] = ()


class ReferenceBackend:
    """Attention over blocks in plain PyTorch, in float32. See the module's text for the method.

    A layer's cache is one tensor ``[2, num_kv_heads, num_blocks * block_size, head_dim]``: keys, values.
    """

    name = "reference"

    def __init__(self) -> None:
        self._workspace: dict[tuple[str, torch.dtype, torch.device], torch.Tensor] = {}

    def cannot_run(self, spec: KVCacheSpec) -> str | None:
        """Return None: it runs everywhere."""
        return None

    def bytes_per_block(self, spec: KVCacheSpec) -> int:
        """Memory of one block over all layers, keys and values."""
        elements = 2 * spec.num_layers * spec.num_kv_heads * spec.block_size * spec.head_dim
        return elements * spec.dtype.itemsize

    def allocate(self, spec: KVCacheSpec, num_blocks: int) -> list[torch.Tensor]:
        """Return the cache of each layer, filled with zeros."""
        shape = (2, spec.num_kv_heads, num_blocks * spec.block_size, spec.head_dim)
        return [lazy_zeros(shape, spec.dtype, spec.device) for _ in range(spec.num_layers)]

    def build_metadata(
        self,
        spec: KVCacheSpec,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
    ) -> ReferenceMetadata:
        """Cut the step into tiles, and find the rows and slots that each needs."""
        batch = _Batch(spec, query_start_loc, seq_lens, block_tables)
        tiles_of_length: dict[int, list[tuple[int, int]]] = {}
        for sequence, (first, end) in enumerate(zip(batch.first_positions, seq_lens, strict=True)):
            for start in range(first - first % TILE, end, TILE):
                tiles_of_length.setdefault(padded_length(start + TILE), []).append((sequence, start))
        stacks = []
        for length, tiles in tiles_of_length.items():
            most = max(1, STACK_ELEMENTS // (length * spec.num_kv_heads * spec.head_dim))
            for i in range(0, len(tiles), most):
                stacks.append(batch.stack(tiles[i : i + most], length))
        return ReferenceMetadata(query_start_loc, seq_lens, block_tables, batch.slot_mapping(), stacks)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        """Store k and v, then attend with q: see `AttentionBackend.forward`."""
        if not isinstance(metadata, ReferenceMetadata):
            raise TypeError("ReferenceBackend needs the metadata that its own build_metadata made")
        keys, values = cache
        keys.index_copy_(1, metadata.slot_mapping, k.transpose(0, 1).to(cache.dtype))
        values.index_copy_(1, metadata.slot_mapping, v.transpose(0, 1).to(cache.dtype))
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for stack in metadata.stacks:
            out.index_copy_(0, stack.kept_rows, self._attend(q, keys, values, stack, scale).to(q.dtype))
        return out

    def _attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, stack: TileStack, scale: float
    ) -> torch.Tensor:
        """Return softmax(q kᵀ · scale) v in float32 for the stack's kept rows."""
        num_tiles, _, _, length = stack.hidden.shape
        num_kv_heads, _, head_dim = keys.shape
        # The query heads that share a KV head are rows of the same product.
        tiles = q.index_select(0, stack.rows).float().mul_(scale)
        tiles = tiles.view(num_tiles, TILE, num_kv_heads, -1, head_dim).permute(2, 0, 3, 1, 4)
        tiles = tiles.reshape(num_kv_heads * num_tiles, -1, head_dim)
        context_shape = (num_kv_heads * num_tiles, length, head_dim)
        k = self._gather("keys", keys, stack.slots).view(context_shape)
        v = self._gather("values", values, stack.slots).view(context_shape)

        scores = torch.bmm(tiles, k.transpose(1, 2)).view(num_kv_heads, num_tiles, -1, TILE, length)
        weights = torch.softmax(scores.masked_fill_(stack.hidden, -torch.inf), dim=-1)
        result = torch.bmm(weights.view(num_kv_heads * num_tiles, -1, length), v)

        result = result.view(num_kv_heads, num_tiles, -1, TILE, head_dim).permute(1, 3, 0, 2, 4)
        return result.reshape(num_tiles * TILE, -1, head_dim).index_select(0, stack.kept)

    def _gather(self, name: str, source: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return ``source[:, slots]`` in float32. It is overwritten by the next call with this name."""
        shape = (source.shape[0], slots.shape[0], source.shape[2])
        gathered = self._reuse(name, shape, source.dtype, source.device)
        torch.index_select(source, 1, slots, out=gathered)
        if source.dtype == torch.float32:
            return gathered
        return self._reuse(name, shape, torch.float32, source.device).copy_(gathered)

    def _reuse(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return a workspace of this shape. Fresh memory for every layer costs more than the attention."""
        size = torch.Size(shape).numel()
        kept = self._workspace.get((name, dtype, device))
        if kept is None or kept.numel() < size:
            kept = self._workspace[name, dtype, device] = torch.empty(size, dtype=dtype, device=device)
        return kept[:size].view(shape)


def padded_length(length: int) -> int:
    """Return how many keys a tile that ends at ``length`` is computed with.

    Few lengths let tiles be stacked: powers of two from 16 to 512, then multiples of 512.
    """
    if length > 512:
        return -(-length // 512) * 512
    return max(16, 1 << (length - 1).bit_length())


class _Batch:
    """A step's sequences as tensors on the CPU, from which the indices of its tiles are made."""

    def __init__(
        self,
        spec: KVCacheSpec,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
    ) -> None:
        self.spec = spec
        widest = max((len(table) for table in block_tables), default=0)
        self.tables = torch.tensor([[*table, *[0] * (widest - len(table))] for table in block_tables])
        self.starts = torch.tensor(query_start_loc)
        self.lens = torch.tensor(seq_lens)
        self.first = self.lens - (self.starts[1:] - self.starts[:-1])
        self.first_positions: list[int] = self.first.tolist()

    def slots(self, sequences: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Slots of ``positions [n, m]`` of ``sequences [n]``."""
        blocks = self.tables[sequences].gather(1, positions // self.spec.block_size)
        return blocks * self.spec.block_size + positions % self.spec.block_size

    def slot_mapping(self) -> torch.Tensor:
        """Slot of every row of the batch."""
        sequences = torch.repeat_interleave(self.starts[1:] - self.starts[:-1])
        positions = torch.arange(len(sequences)) - self.starts[sequences] + self.first[sequences]
        return self.slots(sequences, positions[:, None]).flatten().to(self.spec.device)

    def stack(self, tiles: Sequence[tuple[int, int]], length: int) -> TileStack:
        """Indices of ``tiles``, pairs of sequence and first position."""
        sequences, starts = torch.tensor(tiles).unbind(1)
        first, end = self.first[sequences, None], self.lens[sequences, None]
        queries = starts[:, None] + torch.arange(TILE)
        present = (queries >= first) & (queries < end)
        rows = torch.where(present, queries - first + self.starts[sequences, None], 0).flatten()
        keys = torch.arange(length)
        slots = self.slots(sequences, torch.where(keys < end, keys, 0))
        hidden = (keys > queries[:, :, None]).unsqueeze(1)
        kept = present.flatten().nonzero().flatten()
        device = self.spec.device
        return TileStack(
            rows.to(device),
            slots.flatten().to(device),
            hidden.to(device),
            kept.to(device),
            rows[kept].to(device),
        )
