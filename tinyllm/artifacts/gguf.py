"""A GGUF file as `ModelArtifacts`.

Its metadata is first turned into the JSON files that it was made from, so that what those files mean is
decided in one place (`config_json`, `generation_config`), and converting is writing them down.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllm.artifacts.config_json import parse_config
from tinyllm.artifacts.generation_config import parse_sampling_defaults, union_of_eos
from tinyllm.artifacts.gguf_config import ROPE_FACTORS, config_values
from tinyllm.artifacts.gguf_header import GGUFHeader, read_header
from tinyllm.artifacts.gguf_tokenizer import (
    chat_templates,
    generation_values,
    special_token_ids,
    tokenizer_source,
)
from tinyllm.artifacts.gguf_weights import GGUFWeights, read_elements
from tinyllm.artifacts.json_file import Fields
from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.errors import CheckpointError

__all__ = ["GGUFModel", "open_gguf", "read_gguf"]

_MAX_ROPE_FACTORS = 4096


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A checked GGUF file, with the content of the JSON files that say the same."""

    header: GGUFHeader
    config_json: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    artifacts: ModelArtifacts


def open_gguf(path: Path) -> ModelArtifacts:
    """Find and check the model in the GGUF file ``path``. Nothing but the header is read.

    Raises an `ArtifactError`.
    """
    return read_gguf(path).artifacts


def read_gguf(path: Path) -> GGUFModel:
    """Like `open_gguf`, and keep what it was made from."""
    header = read_header(path)
    metadata = header.metadata
    config_json = config_values(header, _rope_factors(header)) | special_token_ids(metadata)
    generation_config = generation_values(metadata)
    config = parse_config(config_json, file=header.file.name)
    artifacts = ModelArtifacts(
        name=header.file.name,
        kind="gguf",
        revision=None,
        config=config,
        weights=GGUFWeights(header, config, interleaved=config_json["model_type"] == "llama"),
        tokenizer=tokenizer_source(metadata),
        chat_templates=chat_templates(metadata),
        sampling_defaults=parse_sampling_defaults(generation_config, file=header.file.name),
        eos_token_ids=union_of_eos(config.vocab_size, Fields(config_json, header.file.name)),
        fingerprint=hashlib.sha256(f"{config!r}\n{header.digest}".encode()).hexdigest(),
    )
    return GGUFModel(header, config_json, generation_config, artifacts)


def _rope_factors(header: GGUFHeader) -> list[float] | None:
    tensor = header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    count = math.prod(tensor.shape)
    if count > _MAX_ROPE_FACTORS:
        raise CheckpointError(f"has {count} elements", file=header.file.name, tensor=ROPE_FACTORS)
    with header.file.open() as file:
        return [float(value) for value in read_elements(file, tensor, 0, count, header.file.name)]
