"""Whether the engine is exact on this machine: results that no batch mate changes, and backends that agree.

What an engine computes for a request must not depend on what else runs. That hangs on how matrix products and
attention are summed by the libraries and the processor at hand, so it is checked where it matters: here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from tinyllm.artifacts.model import ModelArtifacts, ModelConfig
from tinyllm.attention.backends import get_backend
from tinyllm.attention.metadata import KVCacheSpec
from tinyllm.bench.workload import ordinary_ids
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.linear import can_pack
from tinyllm.models.loader import load_model
from tinyllm.runner.reference import next_token_logits

__all__ = ["Check", "check_exactness"]

BLOCK_SIZE: Final = 16
LENGTHS: Final = (90, 33, 1, 17, 64)
CHUNKS: Final = (1, 19, 2, 30)
"""Tokens of each sequence in one step, in turn."""
PROMPTS: Final = (5, 24, 70)
GREEDY_TOKENS: Final = 24
TIES: Final = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Logits closer than this are equal to two ways of rounding."""

Status = Literal["pass", "FAIL", "not promised"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was checked."""

    name: str
    status: Status
    detail: str


@torch.inference_mode()
def check_exactness(artifacts: ModelArtifacts, dtype: torch.dtype) -> list[Check]:
    """Run all checks of a model on the CPU in ``dtype`` (float32 or bfloat16)."""
    device = torch.device("cpu")
    fast = _load(artifacts, dtype, "auto")
    name = str(dtype).removeprefix("torch.")
    checks = _check_invariance(fast, name, promised=can_pack(dtype, device))
    if fast.backend.name == "reference":
        checks.append(Check(f"{name}: greedy", "pass", "there is only the reference backend here"))
        return checks
    return [*checks, _check_agreement(fast, _load(artifacts, dtype, "reference"), name)]


def _load(artifacts: ModelArtifacts, dtype: torch.dtype, backend: str) -> CausalLM:
    config, device = artifacts.config, torch.device("cpu")
    spec = KVCacheSpec(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim, BLOCK_SIZE, dtype, device
    )
    return load_model(artifacts, dtype=dtype, device=device, backend=get_backend(backend, spec))


def _check_invariance(model: CausalLM, name: str, *, promised: bool) -> list[Check]:
    """Compare sequences computed alone with the same ones in a batch, and in pieces in a batch."""
    sequences = [random_ids(model.config, length, seed) for seed, length in enumerate(LENGTHS)]
    alone = [_hidden(model, [ids], whole=True)[0] for ids in sequences]
    checks = []
    for how, whole in (("alone = batched", True), ("alone = chunked", False)):
        together = _hidden(model, sequences, whole=whole)
        checks.append(_compare(f"{name}: {how}, hidden states", alone, together, promised))
        logits = [model.compute_logits(hidden[-1:]) for hidden in alone]
        last = model.compute_logits(torch.cat([hidden[-1:] for hidden in together]))
        checks.append(_compare(f"{name}: {how}, logits", logits, torch.split(last, 1), promised))
    return checks


def _compare(name: str, alone: Sequence[Tensor], together: Sequence[Tensor], promised: bool) -> Check:
    """Compare bit for bit."""
    worst = max(
        float((one.float() - other.float()).abs().max()) for one, other in zip(alone, together, strict=True)
    )
    if all(torch.equal(one, other) for one, other in zip(alone, together, strict=True)):
        return Check(name, "pass", "bit for bit")
    detail = f"differs by up to {worst:.3g}"
    if promised:
        return Check(name, "FAIL", detail)
    return Check(name, "not promised", detail + "; matrix products cannot be packed in this dtype here")


def _hidden(model: CausalLM, sequences: Sequence[Sequence[int]], *, whole: bool) -> list[Tensor]:
    """Return the hidden states of sequences that are computed together, in one step or in many."""
    spec = model.kv_cache_spec(BLOCK_SIZE)
    counts = [-(-len(ids) // BLOCK_SIZE) for ids in sequences]
    tables = [list(range(sum(counts[:i]), sum(counts[: i + 1]))) for i in range(len(counts))]
    caches = model.backend.allocate(spec, sum(counts))
    done = [0] * len(sequences)
    rows: list[list[Tensor]] = [[] for _ in sequences]
    step = 0
    while left := [i for i, ids in enumerate(sequences) if done[i] < len(ids)]:
        sizes = [
            len(sequences[i]) if whole else min(CHUNKS[(step + i) % len(CHUNKS)], len(sequences[i]) - done[i])
            for i in left
        ]
        ends = [done[i] + size for i, size in zip(left, sizes, strict=True)]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        metadata = model.backend.build_metadata(
            spec,
            starts,
            ends,
            [tables[i][: -(-end // BLOCK_SIZE)] for i, end in zip(left, ends, strict=True)],
        )
        spans = [range(done[i], end) for i, end in zip(left, ends, strict=True)]
        tokens = [sequences[i][at] for i, span in zip(left, spans, strict=True) for at in span]
        positions = [at for span in spans for at in span]
        hidden = model(torch.tensor(tokens), torch.tensor(positions), caches, metadata)
        for i, end, part in zip(left, ends, torch.split(hidden, sizes), strict=True):
            rows[i].append(part.clone())
            done[i] = end
        step += 1
    return [torch.cat(parts) for parts in rows]


def _check_agreement(fast: CausalLM, reference: CausalLM, name: str) -> Check:
    """Generate greedily with both backends, until they part; they may only part where two tokens are tied."""
    title = f"{name}: greedy tokens, {fast.backend.name} = reference"
    same = 0
    for seed, length in enumerate(PROMPTS):
        prompt = random_ids(fast.config, length, 100 + seed)
        agreed, gap = _follow(fast, reference, prompt)
        same += agreed
        tolerance = TIES[fast.dtype]
        if gap is not None and gap > tolerance:
            detail = f"token {agreed} differs, whose logits are {gap:.3g} apart (a tie is {tolerance})"
            return Check(title, "FAIL", detail)
    ties = "" if same == GREEDY_TOKENS * len(PROMPTS) else "; then ties fell differently"
    return Check(title, "pass", f"{same} of {GREEDY_TOKENS * len(PROMPTS)} tokens equal{ties}")


def _follow(fast: CausalLM, reference: CausalLM, prompt: Sequence[int]) -> tuple[int, float | None]:
    """Return how many tokens are the same, and the gap of the reference's logits at the first that is not."""
    token_ids, computed = list(prompt), 0
    block_size = -(-(len(prompt) + GREEDY_TOKENS) // BLOCK_SIZE) * BLOCK_SIZE
    models = (fast, reference)
    caches = [model.backend.allocate(model.kv_cache_spec(block_size), 1) for model in models]
    for agreed in range(GREEDY_TOKENS):
        mine, expected = (
            next_token_logits(model, token_ids, computed, cache, block_size)
            for model, cache in zip(models, caches, strict=True)
        )
        token = int(expected.argmax())
        chosen = int(mine.argmax())
        if chosen != token:
            return agreed, float(expected[token] - expected[chosen])
        computed = len(token_ids)
        token_ids.append(token)
    return GREEDY_TOKENS, None


def random_ids(config: ModelConfig, length: int, seed: int) -> list[int]:
    """Return random token ids, the same for the same seed."""
    return random.Random(seed).choices(ordinary_ids(config.vocab_size), k=length)  # noqa: S311  no secret
