"""`ModelReport`: what ``tinyllm inspect`` says about a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tinyllm.artifacts.model import TensorInfo

__all__ = ["MemoryForecast", "ModelReport", "StoredDType", "count_parameters", "group_by_dtype"]


@dataclass(frozen=True, slots=True)
class StoredDType:
    """How much of a checkpoint is stored in one dtype."""

    dtype: str
    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryForecast:
    """Memory for weights and KV cache, in bytes. Activations and the runtime itself come on top."""

    dtype: str
    weights_bytes: int
    kv_cache_dtype: str
    kv_bytes_per_token: int
    max_model_len: int
    kv_cache_bytes: int
    """For one sequence of ``max_model_len`` tokens."""
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What can be said about a model. None is: not known."""

    name: str
    kind: str
    revision: str | None
    architecture: str | None
    can_generate: bool
    reason: str | None
    """Why it cannot be generated with."""
    num_parameters: int | None
    """Parameters the model needs; a tied head counts once."""
    stored_dtypes: tuple[StoredDType, ...]
    tensors: tuple[TensorInfo, ...]
    config: Mapping[str, Any] | None
    """Sizes and options, by the names of `ModelConfig`."""
    context_length: int | None
    tokenizer: str | None
    """``tokenizer.json``, ``sentencepiece`` or ``gguf``."""
    chat_templates: tuple[str, ...]
    """Their names."""
    eos_token_ids: tuple[int, ...]
    """Of the config files; the tokenizer's own comes on top."""
    sampling_defaults: Mapping[str, float]
    memory: MemoryForecast | None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values that JSON has."""
        return asdict(self)


def count_parameters(tensors: Iterable[TensorInfo]) -> int:
    """Return the number of values in all tensors."""
    return sum(math.prod(info.shape) for info in tensors)


def group_by_dtype(tensors: Iterable[TensorInfo]) -> tuple[StoredDType, ...]:
    """Return how much is stored in each dtype, the most first."""
    groups: dict[str, list[int]] = {}
    for info in tensors:
        groups.setdefault(info.dtype, []).append(info.nbytes)
    stored = (StoredDType(dtype, len(sizes), sum(sizes)) for dtype, sizes in groups.items())
    return tuple(sorted(stored, key=lambda group: -group.num_bytes))
