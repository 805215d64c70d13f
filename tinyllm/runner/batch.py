"""`Batch`: one step's tokens laid flat, and which of its rows need logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tinyllm.attention.metadata import AttentionBackend, AttentionMetadata, KVCacheSpec
from tinyllm.core.request import Request
from tinyllm.core.step import ScheduledRequest

__all__ = ["Batch", "BatchBuilder", "PromptRows"]


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Rows of one request that predict tokens of its own prompt, to be scored: a row predicts the next."""

    request: Request
    first_row: int
    target_ids: list[int]
    """The prompt tokens that rows ``first_row``, ``first_row + 1``, ... predict."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step. The tensors are views of buffers that the next step overwrites."""

    input_ids: Tensor
    """int64 ``[num_tokens]``"""
    positions: Tensor
    """int64 ``[num_tokens]``"""
    metadata: AttentionMetadata
    sampling: list[Request]
    """Requests that sample, in order."""
    sample_rows: list[int]
    """``[len(sampling)]``: the row of each one's last token."""
    prompt_rows: list[PromptRows]


class BatchBuilder:
    """Builds batches in buffers that are kept. A step costs what its new tokens do, and a copy of each block
    table; no token of earlier steps is looked at."""

    def __init__(self, backend: AttentionBackend, spec: KVCacheSpec, max_num_batched_tokens: int) -> None:
        self._backend = backend
        self._spec = spec
        self._capacity = 0
        self._reserve(max_num_batched_tokens)

    def build(self, scheduled: Sequence[ScheduledRequest]) -> Batch:
        """Lay the new tokens of every scheduled request one after the other."""
        self._reserve(sum(item.num_new_tokens for item in scheduled))
        query_start_loc, seq_lens, sampling, sample_rows, prompt_rows = [0], [], [], [], []
        row = 0
        for item in scheduled:
            request, start, end = item.request, item.start, item.start + item.num_new_tokens
            next_row = row + item.num_new_tokens
            self._input_ids[row:next_row] = request.token_ids[start:end]
            self._positions[row:next_row] = np.arange(start, end)
            query_start_loc.append(next_row)
            seq_lens.append(end)
            if item.samples:
                sampling.append(request)
                sample_rows.append(next_row - 1)
            if request.wants_prompt_scores and start + 1 < request.num_prompt_tokens:
                targets = request.prompt_token_ids[start + 1 : end + 1]
                prompt_rows.append(PromptRows(request, row, targets))
            row = next_row
        tables = [item.block_table for item in scheduled]
        return Batch(
            input_ids=self._to_device(self._input_ids[:row]),
            positions=self._to_device(self._positions[:row]),
            metadata=self._backend.build_metadata(self._spec, query_start_loc, seq_lens, tables),
            sampling=sampling,
            sample_rows=sample_rows,
            prompt_rows=prompt_rows,
        )

    def _reserve(self, num_tokens: int) -> None:
        """Have room for this many rows: more than planned for come when a prompt is computed in one step."""
        if num_tokens > self._capacity:
            self._capacity = num_tokens
            self._input_ids = np.zeros(num_tokens, dtype=np.int64)
            self._positions = np.zeros(num_tokens, dtype=np.int64)

    def _to_device(self, values: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(values)
        # Even a copy that is none lets go of the interpreter, and another thread goes first.
        return tensor if self._spec.device.type == "cpu" else tensor.to(self._spec.device)
