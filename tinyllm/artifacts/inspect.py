"""What a model is and what it needs, told from its headers: nothing is loaded, torch is not imported."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tinyllm.artifacts.model import ModelArtifacts, ModelConfig
from tinyllm.artifacts.report import MemoryForecast, ModelReport, count_parameters, group_by_dtype
from tinyllm.artifacts.resolve import fetch, open_model
from tinyllm.artifacts.survey import survey
from tinyllm.errors import ConfigError, UnsupportedModelError

__all__ = ["forecast_memory", "inspect_model", "inspect_named"]

_ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def inspect_model(
    artifacts: ModelArtifacts,
    *,
    max_model_len: int | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
) -> ModelReport:
    """Report on a model that tinyllm runs.

    The forecast is for one sequence of ``max_model_len`` tokens (default: the model's context). Raises
    `ConfigError` for a dtype or length that cannot be.
    """
    config = artifacts.config
    tensors = tuple(artifacts.weights.tensors.values())
    num_parameters = count_parameters(tensors)
    return ModelReport(
        name=artifacts.name,
        kind=artifacts.kind,
        revision=artifacts.revision,
        architecture=config.architecture,
        can_generate=True,
        reason=None,
        num_parameters=num_parameters,
        stored_dtypes=group_by_dtype(tensors),
        tensors=tensors,
        config=asdict(config),
        context_length=config.max_position_embeddings,
        tokenizer=artifacts.tokenizer.kind if artifacts.tokenizer else None,
        chat_templates=tuple(artifacts.chat_templates),
        eos_token_ids=artifacts.eos_token_ids,
        sampling_defaults=artifacts.sampling_defaults.model_dump(exclude_none=True),
        memory=forecast_memory(config, num_parameters, max_model_len, dtype, kv_cache_dtype),
    )


def inspect_named(
    model: str | None,
    *,
    max_model_len: int | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: bool = True,
) -> ModelReport:
    """Report on the model that `open_model` would open, also when it is one that tinyllm does not run.

    Raises an `ArtifactError` if it is not there or damaged, and `ConfigError`.
    """
    options: dict[str, Any] = {"cache_dir": cache_dir, "offline": offline, "progress": progress}
    options |= {"revision": revision, "token": token}
    try:
        artifacts = open_model(model, **options)
    except UnsupportedModelError as error:
        if model is None:
            raise
        return survey(fetch(model, **options), str(error))
    return inspect_model(artifacts, max_model_len=max_model_len, dtype=dtype, kv_cache_dtype=kv_cache_dtype)


def forecast_memory(
    config: ModelConfig, num_parameters: int, max_model_len: int | None, dtype: str, kv_cache_dtype: str
) -> MemoryForecast:
    """Return what weights and KV cache need. Raises `ConfigError`."""
    length = config.max_position_embeddings if max_model_len is None else max_model_len
    if not 1 <= length <= config.max_position_embeddings:
        raise ConfigError(
            f"max_model_len must be from 1 to the model's context of {config.max_position_embeddings:,} "
            f"tokens, not {length:,}"
        )
    dtype = config.dtype if dtype == "auto" else dtype
    kv_cache_dtype = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
    weights_bytes = num_parameters * _item_bytes("dtype", dtype)
    values_per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    kv_bytes_per_token = values_per_token * _item_bytes("kv_cache_dtype", kv_cache_dtype)
    kv_cache_bytes = kv_bytes_per_token * length
    return MemoryForecast(
        dtype=dtype,
        weights_bytes=weights_bytes,
        kv_cache_dtype=kv_cache_dtype,
        kv_bytes_per_token=kv_bytes_per_token,
        max_model_len=length,
        kv_cache_bytes=kv_cache_bytes,
        total_bytes=weights_bytes + kv_cache_bytes,
    )


def _item_bytes(option: str, dtype: str) -> int:
    if dtype not in _ITEM_BYTES:
        raise ConfigError(f"{option} must be auto, {', '.join(_ITEM_BYTES)}, not {dtype[:40]!r}")
    return _ITEM_BYTES[dtype]
