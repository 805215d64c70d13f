"""A request, a model and an attention backend small enough to read, for the runner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from tinyllm.attention.metadata import AttentionMetadata, KVCacheSpec
from tinyllm.core.request import Request
from tinyllm.core.step import ScheduledRequest, SchedulerOutput
from tinyllm.params import SamplingDefaults, SamplingParams

VOCAB = 50
"""Ids the fake tokenizer knows; the fake model has `PADDED`."""
PADDED = 64
CPU = torch.device("cpu")


def make_request(
    name: str = "r0",
    prompt: Sequence[int] = (1, 2, 3),
    output: Sequence[int] = (),
    *,
    index: int = 0,
    eos: Sequence[int] = (0,),
    bad_words: tuple[tuple[int, ...], ...] = (),
    leader: Request | None = None,
    **options: Any,
) -> Request:
    """Return a request with resolved params that has generated ``output`` so far. Greedy unless asked."""
    options.setdefault("temperature", 0.0)
    request = Request(
        request_id=name,
        prompt_token_ids=list(prompt),
        params=SamplingParams(**options).resolved(SamplingDefaults()),
        max_tokens=1000,
        eos_token_ids=frozenset(eos),
        arrival_time=0.0,
        bad_word_token_ids=bad_words,
        index=index,
        leader=leader,
    )
    request.token_ids += output
    return request


def schedule(*parts: tuple[Request, int, int]) -> SchedulerOutput:
    """Schedule ``(request, start, num_new_tokens)``; a part that reaches the last token samples."""
    items = [
        ScheduledRequest(request, start, new, [place], samples=start + new == request.num_tokens)
        for place, (request, start, new) in enumerate(parts)
    ]
    return SchedulerOutput(scheduled=items)


class FakeBackend:
    """Attention that keeps nothing; `FakeModel` asks for none."""

    name = "fake"

    def cannot_run(self, spec: KVCacheSpec) -> str | None:
        return None

    def bytes_per_block(self, spec: KVCacheSpec) -> int:
        per_token = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * spec.dtype.itemsize
        return per_token * spec.block_size

    def allocate(self, spec: KVCacheSpec, num_blocks: int) -> list[Any]:
        return [None] * spec.num_layers

    def build_metadata(
        self,
        spec: KVCacheSpec,
        query_start_loc: Sequence[int],
        seq_lens: Sequence[int],
        block_tables: Sequence[Sequence[int]],
    ) -> AttentionMetadata:
        return AttentionMetadata(query_start_loc, seq_lens, block_tables, torch.empty(0, dtype=torch.int64))

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: Any, metadata: Any, scale: float
    ) -> torch.Tensor:
        raise NotImplementedError


SPEC = KVCacheSpec(num_layers=1, num_kv_heads=1, head_dim=2, block_size=1024, dtype=torch.float32, device=CPU)


class FakeModel:
    """Logits are a fixed function of a row's token and position, so what they should be is easy to say."""

    device = CPU

    def __init__(self) -> None:
        self.config: Any = SimpleNamespace(vocab_size=PADDED)
        self.logit_rows = 0
        self.broken_tokens: set[int] = set()
        """Tokens whose rows are NaN."""

    def __call__(
        self, input_ids: torch.Tensor, positions: torch.Tensor, kv_caches: Any, metadata: Any
    ) -> torch.Tensor:
        return torch.stack([input_ids.float(), positions.float()], dim=1)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.logit_rows += len(hidden)
        return torch.stack([self.logits(int(token), int(position)) for token, position in hidden.tolist()])

    def logits(self, token: int, position: int) -> torch.Tensor:
        """Return the row ``[PADDED]`` after ``token`` at ``position``; a padding id is always the best."""
        generator = torch.Generator().manual_seed(token * 1000 + position)
        row = torch.randn(PADDED, generator=generator) * 3
        row[VOCAB] = 100.0
        return row * float("nan") if token in self.broken_tokens else row
