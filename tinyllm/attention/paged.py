"""Attention that reads KV blocks in place, through the C kernel in ``native/paged_attention.c``.

The layout (keys transposed in groups of 16 tokens) and the order of summation are described there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch

from tinyllm.attention.memory import lazy_zeros
from tinyllm.attention.metadata import AttentionMetadata, KVCacheSpec
from tinyllm.errors import ConfigError
from tinyllm.native.library import load_library

__all__ = ["AttentionArgs", "PagedAttention", "PagedMetadata", "attention_args"]

LANES: Final = 16  # tokens in one vector of keys
FEW: Final = 4  # query rows of a sequence that are one tile, which shares a read of K and V
MANY: Final = 8  # query rows of a tile where a sequence has more
PART: Final = 512  # tokens in one unit of parallel work
MAX_HEAD_DIM: Final = 256

IntArray = np.ndarray[tuple[int, ...], np.dtype[Any]]
FloatArray = np.ndarray[tuple[int, ...], np.dtype[np.float32]]

Pointer, Int64, Int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class AttentionArgs(ctypes.Structure):
    """``attention_args`` of ``native/kernels.h``."""

    _fields_ = (
        ("q", Pointer),
        ("out", Pointer),
        ("keys", Pointer),
        ("values", Pointer),
        ("query_start_loc", Pointer),
        ("seq_lens", Pointer),
        ("block_tables", Pointer),
        ("num_seqs", Int64),
        ("max_blocks", Int64),
        ("num_heads", Int64),
        ("num_kv_heads", Int64),
        ("head_dim", Int64),
        ("num_blocks", Int64),
        ("block_size", Int64),
        ("q_stride", Int64),
        ("partial", Pointer),
        ("tiles", Pointer),
        ("num_tiles", Int64),
        ("scale", ctypes.c_float),
        ("q_bf16", Int32),
        ("kv_bf16", Int32),
        ("num_threads", Int32),
    )


class _StoreArgs(ctypes.Structure):
    _fields_ = (
        ("k", Pointer),
        ("v", Pointer),
        ("keys", Pointer),
        ("values", Pointer),
        ("slots", Pointer),
        ("num_tokens", Int64),
        ("num_kv_heads", Int64),
        ("head_dim", Int64),
        ("num_blocks", Int64),
        ("block_size", Int64),
        ("k_stride", Int64),
        ("v_stride", Int64),
        ("in_bf16", Int32),
        ("kv_bf16", Int32),
        ("num_threads", Int32),
    )


@dataclass(frozen=True)
class _Tiles:
    """How a step is cut into units of parallel work, for one number of query heads per KV head."""

    table: torch.Tensor
    """int32 ``[num_tiles + 1, 3]``: sequence, first row, first part; the last row has the number of parts."""
    num_tiles: int
    num_parts: int


@dataclass(frozen=True)
class PagedMetadata(AttentionMetadata):
    """What every layer of a step shares, in the form the kernel reads."""

    query_start_loc_tensor: torch.Tensor
    seq_lens_tensor: torch.Tensor
    block_tables_tensor: torch.Tensor
    """int32 ``[num_seqs, max_blocks]``, short tables padded with block 0."""
    tiles: dict[int, _Tiles] = field(default_factory=dict)
    """Made on first use, by query heads per KV head."""


class PagedAttention:
    """The C kernel behind the attention protocol, for CPUs.

    Raises `NativeUnavailableError` when the kernel cannot be built or loaded.
    """

    name = "paged"

    def __init__(self) -> None:
        library = load_library()
        self._attend, self._store = library.tinyllm_attend, library.tinyllm_store_kv
        self._attend.argtypes, self._attend.restype = (ctypes.POINTER(AttentionArgs),), None
        self._store.argtypes, self._store.restype = (ctypes.POINTER(_StoreArgs),), None

    @staticmethod
    def cannot_run(spec: KVCacheSpec) -> str | None:
        """Say why this backend cannot serve ``spec``, or None if it can."""
        if spec.device.type != "cpu":
            return f"it runs on CPUs, not on {spec.device.type}"
        if spec.dtype not in (torch.float32, torch.bfloat16):
            return f"it stores float32 and bfloat16, not {spec.dtype}"
        if spec.block_size % LANES:
            return f"block_size must be a multiple of {LANES}"
        if spec.head_dim % LANES or spec.head_dim > MAX_HEAD_DIM:
            return f"head_dim must be a multiple of {LANES} up to {MAX_HEAD_DIM}"
        return None

    def bytes_per_block(self, spec: KVCacheSpec) -> int:
        """Memory of one block over all layers, keys and values."""
        return 2 * spec.num_layers * spec.block_size * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize

    def allocate(self, spec: KVCacheSpec, num_blocks: int) -> list[torch.Tensor]:
        """Return for each layer ``[2, num_kv_heads, num_blocks, block_size * head_dim]``: keys, values.

        By heads first, for a sequence's blocks mostly follow each other, and one long piece of memory is read
        faster than many short ones.
        """
        if reason := self.cannot_run(spec):
            raise ConfigError(f"attention backend 'paged' cannot serve this cache: {reason}")
        shape = (2, spec.num_kv_heads, num_blocks, spec.block_size * spec.head_dim)
        return [lazy_zeros(shape, spec.dtype, spec.device) for _ in range(spec.num_layers)]

    def build_metadata(
        self,
        spec: KVCacheSpec,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
    ) -> PagedMetadata:
        """Compute what every layer of a step shares."""
        tables = np.zeros((len(seq_lens), max(map(len, block_tables))), dtype=np.int32)
        for row, table in zip(tables, block_tables, strict=True):
            row[: len(table)] = table
        starts, lens = np.asarray(query_start_loc, dtype=np.int32), np.asarray(seq_lens, dtype=np.int32)
        return PagedMetadata(
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            block_tables=block_tables,
            slot_mapping=torch.from_numpy(_slots(starts, lens, tables, spec.block_size)),
            query_start_loc_tensor=torch.from_numpy(starts),
            seq_lens_tensor=torch.from_numpy(lens),
            block_tables_tensor=torch.from_numpy(tables),
        )

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> torch.Tensor:
        """Store k and v, then attend with q; see `AttentionBackend.forward`."""
        if not isinstance(metadata, PagedMetadata):
            raise TypeError("metadata must come from this backend's build_metadata")
        rows, k, v = (_rows(x) for x in (q, k, v))
        self._store_kv(k, v, cache, metadata.slot_mapping)
        return self._attend_to(rows, k.shape[1], cache, metadata, scale).to(q.dtype)

    def _store_kv(self, k: torch.Tensor, v: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
        num_tokens, num_kv_heads, head_dim = k.shape
        args = _StoreArgs(
            k=k.data_ptr(),
            v=v.data_ptr(),
            keys=cache[0].data_ptr(),
            values=cache[1].data_ptr(),
            slots=slots.data_ptr(),
            num_tokens=num_tokens,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            num_blocks=cache.shape[2],
            block_size=cache.shape[3] // head_dim,
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            in_bf16=k.dtype == torch.bfloat16,
            kv_bf16=cache.dtype == torch.bfloat16,
            num_threads=torch.get_num_threads(),
        )
        self._store(ctypes.byref(args))

    def _attend_to(
        self, q: torch.Tensor, num_kv_heads: int, cache: torch.Tensor, metadata: PagedMetadata, scale: float
    ) -> torch.Tensor:
        num_tokens, num_heads, head_dim = q.shape
        out = torch.empty(num_tokens, num_heads, head_dim, dtype=q.dtype)
        args, _partial = attention_args(metadata, num_heads, num_kv_heads, head_dim, cache, q.dtype, scale)
        args.q, args.q_stride, args.out = q.data_ptr(), q.stride(0), out.data_ptr()
        args.keys, args.values = cache[0].data_ptr(), cache[1].data_ptr()
        self._attend(ctypes.byref(args))
        return out


def attention_args(
    metadata: PagedMetadata,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    cache: torch.Tensor,
    dtype: torch.dtype,
    scale: float,
) -> tuple[AttentionArgs, FloatArray]:
    """Return what every layer's attention has in common, and the workspace that must outlive its use.

    ``cache`` is any layer's, ``dtype`` that of the queries and the result.
    """
    group = num_heads // num_kv_heads
    if group not in metadata.tiles:
        metadata.tiles[group] = _cut(metadata.query_start_loc_tensor, metadata.seq_lens_tensor, group)
    tiles = metadata.tiles[group]
    partial = np.empty(tiles.num_parts * num_kv_heads * MANY * (head_dim + 2), dtype=np.float32)
    args = AttentionArgs(
        query_start_loc=metadata.query_start_loc_tensor.data_ptr(),
        seq_lens=metadata.seq_lens_tensor.data_ptr(),
        block_tables=metadata.block_tables_tensor.data_ptr(),
        num_seqs=len(metadata.seq_lens),
        max_blocks=metadata.block_tables_tensor.shape[1],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        num_blocks=cache.shape[2],
        block_size=cache.shape[3] // head_dim,
        partial=partial.ctypes.data,
        tiles=tiles.table.data_ptr(),
        num_tiles=tiles.num_tiles,
        scale=scale,
        q_bf16=dtype == torch.bfloat16,
        kv_bf16=cache.dtype == torch.bfloat16,
        num_threads=torch.get_num_threads(),
    )
    return args, partial


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return x in a type the kernel reads, each token's heads side by side."""
    if x.dtype not in (torch.float32, torch.bfloat16):
        x = x.float()
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _slots(starts: IntArray, lens: IntArray, tables: IntArray, block_size: int) -> IntArray:
    """Return int64 ``[num_tokens]``: where each row's K and V go."""
    query_lens = np.diff(starts)
    sequence = np.repeat(np.arange(len(lens)), query_lens)
    position = (
        np.arange(starts[-1]) - np.repeat(starts[:-1], query_lens) + np.repeat(lens - query_lens, query_lens)
    )
    slots: IntArray = tables[sequence, position // block_size].astype(np.int64) * block_size
    slots += position % block_size
    return slots


def _cut(starts: torch.Tensor, lens: torch.Tensor, group: int) -> _Tiles:
    """Cut every sequence's query rows (tokens times heads that share a KV head) into the kernel's tiles."""
    query_lens = np.diff(starts.numpy())
    num_rows = query_lens * group
    tile_rows = np.where(num_rows <= FEW, FEW, MANY)
    per_seq = -(-num_rows // tile_rows)
    sequence = np.repeat(np.arange(len(per_seq)), per_seq)
    rows = tile_rows[sequence]
    first_row = (np.arange(per_seq.sum()) - np.repeat(np.cumsum(per_seq) - per_seq, per_seq)) * rows
    last_row = np.minimum(first_row + rows, num_rows[sequence]) - 1
    end = (lens.numpy() - query_lens)[sequence] + last_row // group + 1
    parts = np.cumsum(-(-end // PART))
    table = np.zeros((len(sequence) + 1, 3), dtype=np.int32)
    table[:-1, 0], table[:-1, 1], table[1:, 2] = sequence, first_row, parts
    return _Tiles(torch.from_numpy(table), len(sequence), int(parts[-1]))
