"""How large the KV cache is: blocks from bytes, or from lengths and what memory allows."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

import torch

from tinyllm.artifacts.model import ModelConfig
from tinyllm.attention.metadata import AttentionBackend, KVCacheSpec
from tinyllm.config import EngineConfig
from tinyllm.errors import ConfigError
from tinyllm.runner.device import DTYPES
from tinyllm.runner.memory import free_memory

__all__ = ["MAX_BLOCKS", "KVCachePlan", "kv_cache_spec", "log_plan", "plan_kv_cache"]

logger = logging.getLogger("tinyllm.runner")

MAX_BLOCKS: Final = 1_000_000
"""Books are kept of each block: a million take 120 MB and 2 seconds at start, and more with use."""

_FREE_IF_UNKNOWN: Final = 4 << 30
"""What is taken to be free where the system does not say."""


@dataclass(frozen=True, slots=True)
class KVCachePlan:
    """The KV cache that is going to be allocated."""

    spec: KVCacheSpec
    num_blocks: int
    max_model_len: int
    """Longest prompt plus answer, in tokens; one such sequence always fits."""
    bytes: int

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        return self.spec.block_size


def kv_cache_spec(
    config: EngineConfig, model_config: ModelConfig, *, dtype: torch.dtype, device: torch.device
) -> KVCacheSpec:
    """Return the shape of the KV cache in paged mode; ``kv_cache_dtype="auto"`` takes ``dtype``."""
    return KVCacheSpec(
        num_layers=model_config.num_hidden_layers,
        num_kv_heads=model_config.num_key_value_heads,
        head_dim=model_config.head_dim,
        block_size=config.block_size,
        dtype=dtype if config.kv_cache_dtype == "auto" else DTYPES[config.kv_cache_dtype],
        device=device,
    )


def plan_kv_cache(
    config: EngineConfig,
    model_config: ModelConfig,
    *,
    backend: AttentionBackend,
    dtype: torch.dtype,
    device: torch.device,
    free_bytes: int | None = None,
) -> KVCachePlan:
    """Decide how many blocks there are and how long a sequence may get.

    The memory is ``kv_cache_bytes``, else what ``max_num_seqs`` sequences of ``max_model_len`` need, but at
    most a quarter of what is free (``free_bytes``; measured if None, so call this when the weights are
    loaded). A sequence may be as long as ``max_model_len``, else as the model's context, or less where the
    cache is smaller. ``dtype`` is the computation's, which ``kv_cache_dtype="auto"`` takes. Raises
    `ConfigError` where what was asked for, or any sequence at all, does not fit, with sizes that would.
    """
    context = model_config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > context:
        raise ConfigError(
            f"max_model_len: {config.max_model_len} is more than the model's context, {context}"
        )
    spec = kv_cache_spec(config, model_config, dtype=dtype, device=device)
    budget = _budget(config, device, free_bytes)
    plan_mode = _plan_paged if config.kv_cache_mode == "paged" else _plan_contiguous
    return plan_mode(config, spec, backend, budget, context)


def _budget(config: EngineConfig, device: torch.device, free_bytes: int | None) -> int:
    """Return the most bytes the cache may take."""
    free = free_memory(device) if free_bytes is None else free_bytes
    if config.kv_cache_bytes is None:
        return (_FREE_IF_UNKNOWN if free is None else free) // 4
    if free is not None and config.kv_cache_bytes > free:
        raise ConfigError(
            f"kv_cache_bytes: {config.kv_cache_bytes} is more than the {free} bytes that are free"
        )
    return config.kv_cache_bytes


def _plan_paged(
    config: EngineConfig, spec: KVCacheSpec, backend: AttentionBackend, budget: int, context: int
) -> KVCachePlan:
    """Divide the budget into blocks; without ``kv_cache_bytes``, no more than can be in use at once."""
    length = config.max_model_len or context
    block_bytes = backend.bytes_per_block(spec)
    blocks_per_sequence = -(-length // spec.block_size)
    num_blocks = budget // block_bytes
    if config.kv_cache_bytes is None:
        num_blocks = min(num_blocks, blocks_per_sequence * config.max_num_seqs, MAX_BLOCKS)
    if num_blocks > MAX_BLOCKS:
        raise ConfigError(
            f"kv_cache_bytes: {num_blocks:,} blocks are more than {MAX_BLOCKS:,}; raise block_size, or set "
            f"kv_cache_bytes to at most {MAX_BLOCKS * block_bytes}"
        )
    if config.max_model_len is not None and blocks_per_sequence > MAX_BLOCKS:
        raise ConfigError(
            f"max_model_len: {length} tokens are more than {MAX_BLOCKS:,} blocks; raise block_size, or set "
            f"max_model_len to at most {MAX_BLOCKS * spec.block_size}"
        )
    if num_blocks < blocks_per_sequence:
        fitting = num_blocks * spec.block_size
        if config.max_model_len is not None or not fitting:
            raise _too_small(config, length, fitting, blocks_per_sequence * block_bytes, budget)
        length = fitting
    return KVCachePlan(spec, num_blocks, length, num_blocks * block_bytes)


def _plan_contiguous(
    config: EngineConfig, spec: KVCacheSpec, backend: AttentionBackend, budget: int, context: int
) -> KVCachePlan:
    """Give each of ``max_num_seqs`` sequences one block, a multiple of ``block_size`` long."""
    share = budget // config.max_num_seqs
    fitting = min(context, share // backend.bytes_per_block(spec) * spec.block_size)
    length = config.max_model_len or fitting
    whole = replace(spec, block_size=-(-(length or context) // spec.block_size) * spec.block_size)
    needed = backend.bytes_per_block(whole) * config.max_num_seqs
    if not length or needed > budget:
        raise _too_small(config, whole.block_size, fitting, needed, budget)
    return KVCachePlan(whole, config.max_num_seqs, length, needed)


def _too_small(config: EngineConfig, length: int, fitting: int, needed: int, budget: int) -> ConfigError:
    """Return the error that says what does not fit, and each way to make it fit."""
    source = "kv_cache_bytes" if config.kv_cache_bytes is not None else "a quarter of the free memory"
    contiguous = config.kv_cache_mode == "contiguous"
    what = (
        f"{config.max_num_seqs} sequences of {length} tokens"
        if contiguous
        else f"one sequence of {length} tokens"
    )
    fixes = [f"set kv_cache_bytes to at least {needed}"]
    if fitting:
        fixes.append(f"max_model_len to at most {fitting}")
    if contiguous and config.max_num_seqs > 1:
        fixes.append("max_num_seqs lower")
    return ConfigError(
        f"the KV cache is too small: {what} need {needed} bytes, and {source} is {budget}; "
        + ", or ".join(fixes)
    )


def log_plan(plan: KVCachePlan, config: EngineConfig, context: int) -> None:
    """Log what was decided, and where it is less than the model could do."""
    logger.info(
        "KV cache: %d blocks of %d tokens, %.1f MiB (%s)",
        plan.num_blocks,
        plan.block_size,
        plan.bytes / 2**20,
        plan.spec.dtype,
    )
    if config.max_model_len is None and plan.max_model_len < context:
        logger.warning(
            "max_model_len is %d, not the model's context of %d: the KV cache holds no longer sequence; "
            "raise %s for more",
            plan.max_model_len,
            context,
            "block_size" if plan.num_blocks == MAX_BLOCKS else "kv_cache_bytes",
        )
