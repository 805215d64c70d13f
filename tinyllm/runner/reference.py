"""Reference generation: the plain loop that every faster path is compared with, token for token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from tinyllm.attention.metadata import LayerKVCache
from tinyllm.models.causal_lm import CausalLM

__all__ = ["generate_reference", "next_token_logits"]


def generate_reference(
    model: CausalLM,
    prompt_token_ids: Sequence[int],
    *,
    max_tokens: int,
    eos_token_ids: frozenset[int] = frozenset(),
    use_cache: bool = True,
) -> Iterator[int]:
    """Yield up to ``max_tokens`` greedy tokens; the last may be one of ``eos_token_ids``, and is yielded too.

    The KV cache is contiguous: one block as long as the sequence can get. Without ``use_cache`` every step
    computes the whole sequence into a fresh cache; the tokens are the same.
    """
    token_ids = list(prompt_token_ids)
    spec = model.kv_cache_spec(block_size=len(token_ids) + max_tokens)
    kv_caches = model.backend.allocate(spec, num_blocks=1)
    num_computed = 0
    for _ in range(max_tokens):
        if not use_cache:
            kv_caches, num_computed = model.backend.allocate(spec, num_blocks=1), 0
        token = int(next_token_logits(model, token_ids, num_computed, kv_caches, spec.block_size).argmax())
        num_computed = len(token_ids)
        token_ids.append(token)
        yield token
        if token in eos_token_ids:
            return


@torch.inference_mode()
def next_token_logits(
    model: CausalLM,
    token_ids: Sequence[int],
    num_computed: int,
    kv_caches: list[LayerKVCache],
    block_size: int,
) -> torch.Tensor:
    """Compute tokens from ``num_computed`` on, whose KV goes to block 0; return logits ``[vocab_size]``."""
    positions = torch.arange(num_computed, len(token_ids), device=model.device)
    metadata = model.backend.build_metadata(
        model.kv_cache_spec(block_size),
        query_start_loc=[0, len(positions)],
        seq_lens=[len(token_ids)],
        block_tables=[[0]],
    )
    input_ids = torch.tensor(token_ids[num_computed:], device=model.device)
    hidden = model(input_ids, positions, kv_caches, metadata)
    return model.compute_logits(hidden[-1:])[0]
