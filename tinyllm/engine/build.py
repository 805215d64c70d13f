"""From a config to an `EngineCore` that is ready to step: files, weights, KV cache, scheduler, runner."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tinyllm.artifacts.files import read_option_file
from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.artifacts.resolve import open_model
from tinyllm.attention.backends import get_backend
from tinyllm.config import EngineConfig
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.engine.core import EngineCore
from tinyllm.engine.loaded import EngineInfo, LoadedModel
from tinyllm.metrics import EngineMetrics
from tinyllm.models.loader import load_model
from tinyllm.native.library import build_library
from tinyllm.runner.device import DTYPES, default_num_threads, preflight, resolve_device, resolve_dtype
from tinyllm.runner.huge_pages import private_pages, use_huge_pages
from tinyllm.runner.kv_cache import KVCachePlan, kv_cache_spec, log_plan, plan_kv_cache
from tinyllm.runner.memory import keep_freed_memory, return_freed_memory
from tinyllm.runner.model_runner import ModelRunner
from tinyllm.text.chat_template import ChatTemplates
from tinyllm.text.tokenizer import eos_token_ids, load_tokenizer

__all__ = ["build_core"]

logger = logging.getLogger("tinyllm.engine")


def build_core(config: EngineConfig, check: Callable[[], None] = lambda: None) -> EngineCore:
    """Load the model that ``config`` names, on the calling thread, which must also be the one that steps.

    Raises `ArtifactError`, `DeviceError` or `ConfigError`, before anything large is allocated where it can,
    and what ``check`` raises, which is called before each thing that takes long and after each tensor.
    """
    started = time.perf_counter()
    artifacts = open_model(
        config.model,
        revision=config.revision,
        token=config.hub_token,
        cache_dir=config.cache_dir,
        offline=config.offline,
        progress=config.progress,
    )
    check()
    tokenizer = load_tokenizer(artifacts.tokenizer) if artifacts.tokenizer is not None else None
    templates = ChatTemplates.for_model(artifacts, tokenizer, override=_template_override(config))

    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, artifacts.config.dtype)
    spec = kv_cache_spec(config, artifacts.config, dtype=dtype, device=device)
    if device.type == "cpu":
        build_library(progress=config.progress)
    backend = get_backend(config.attention_backend, spec)
    torch.set_num_threads(config.num_threads or default_num_threads())
    with torch.inference_mode():
        preflight(
            device, dtype, backend, None if config.kv_cache_dtype == "auto" else DTYPES[config.kv_cache_dtype]
        )
        plan_cache = partial(
            plan_kv_cache, config, artifacts.config, backend=backend, dtype=dtype, device=device
        )
        plan_cache()  # what does not even fit without the weights is refused before they are read
        before = private_pages()
        if device.type == "cpu":
            return_freed_memory()
        model = load_model(
            artifacts,
            dtype=dtype,
            device=device,
            backend=backend,
            progress=config.progress,
            check=check,
        )
        if device.type == "cpu":
            keep_freed_memory()
            use_huge_pages(private_pages() - before)  # what else the process holds is not ours to move
        plan = plan_cache()
        log_plan(plan, config, artifacts.config.max_position_embeddings)
        vocab_size = artifacts.config.vocab_size
        if tokenizer is not None:
            vocab_size = min(vocab_size, tokenizer.vocab_size)
        runner = ModelRunner(
            model,
            backend,
            plan.spec,
            plan.num_blocks,
            vocab_size=vocab_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
    info = EngineInfo(
        model=artifacts.name,
        revision=artifacts.revision,
        architecture=artifacts.config.architecture,
        dtype=_name(dtype),
        kv_cache_dtype=_name(plan.spec.dtype),
        device=str(device),
        attention_backend=backend.name,
        layers="torch" if model.native is None else "native",
        vocab_size=vocab_size,
        max_model_len=plan.max_model_len,
        block_size=plan.block_size,
        num_kv_blocks=plan.num_blocks,
        kv_cache_bytes=plan.bytes,
        weight_bytes=_weight_bytes(artifacts, dtype),
        load_seconds=time.perf_counter() - started,
    )
    metrics = EngineMetrics(info.model, max_model_len=info.max_model_len)
    metrics.describe_cache(
        block_size=info.block_size,
        num_blocks=info.num_kv_blocks,
        cache_dtype=info.kv_cache_dtype,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    eos = eos_token_ids(artifacts, tokenizer)
    if not eos:
        logger.warning("the model names no end-of-sequence token: answers end by stop or by length only")
    loaded = LoadedModel(
        info=info,
        tokenizer=tokenizer,
        chat_templates=templates,
        metrics=metrics,
        sampling_defaults=artifacts.sampling_defaults,
        eos_token_ids=eos,
    )
    return EngineCore(
        config, loaded, _kv_cache(config, artifacts, plan, info), runner, context=torch.inference_mode
    )


def _template_override(config: EngineConfig) -> str | None:
    """Return the Jinja source that replaces the model's own: the option's, or of the file that it names."""
    given = config.chat_template
    if given is None or "{" in given:
        return given
    return read_option_file(Path(given), "chat_template: given is no Jinja template, and as a file it")


def _kv_cache(
    config: EngineConfig, artifacts: ModelArtifacts, plan: KVCachePlan, info: EngineInfo
) -> KVCacheManager:
    """Make the books of the KV cache; its identity is all that stored numbers depend on beside tokens."""
    limits = [] if config.prefix_cache_max_blocks is None else [config.prefix_cache_max_blocks]
    if config.prefix_cache_bytes is not None:
        limits.append(config.prefix_cache_bytes * plan.num_blocks // plan.bytes)
    identity = "\0".join(
        (artifacts.fingerprint, info.dtype, info.kv_cache_dtype, info.attention_backend, str(info.block_size))
    )
    return KVCacheManager(
        plan.num_blocks,
        plan.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        max_cached_blocks=min(limits, default=None),
        identity=identity.encode(),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _weight_bytes(artifacts: ModelArtifacts, dtype: torch.dtype) -> int:
    tensors = artifacts.weights.tensors.values()
    return sum(math.prod(info.shape) for info in tensors) * dtype.itemsize
