"""A local directory in the Hugging Face layout, also a snapshot of the Hub's cache, as `ModelArtifacts`."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from tinyllm.artifacts.config_json import parse_config
from tinyllm.artifacts.files import MIB, ModelDirectory
from tinyllm.artifacts.generation_config import parse_sampling_defaults, union_of_eos
from tinyllm.artifacts.json_file import Fields, parse_object, shorten
from tinyllm.artifacts.model import ModelArtifacts, ModelConfig, TokenizerSource
from tinyllm.artifacts.safetensors import SINGLE_FILE, Checkpoint, SafetensorsWeights, read_checkpoint
from tinyllm.artifacts.templates import read_chat_templates
from tinyllm.errors import CheckpointError, ModelNotFoundError, TokenizerError, UnsupportedModelError

__all__ = [
    "find_tokenizer",
    "open_directory",
    "pickled_weights",
    "read_json",
    "read_tokenizer_config",
]

CONFIG_FILE: Final = "config.json"
GENERATION_CONFIG_FILE: Final = "generation_config.json"
TOKENIZER_CONFIG_FILE: Final = "tokenizer_config.json"
_MAX_CONFIG_BYTES: Final = 4 * MIB
_MAX_TOKENIZER_BYTES: Final = 128 * MIB
_PICKLE_SUFFIXES: Final = (".bin", ".pt", ".pth", ".ckpt")


def open_directory(
    path: Path,
    *,
    name: str | None = None,
    kind: Literal["directory", "hub"] = "directory",
    revision: str | None = None,
) -> ModelArtifacts:
    """Find and check the model's files. Nothing but headers is read.

    ``name`` is what messages and results call it (default: the directory's name). Raises an `ArtifactError`.
    """
    directory = ModelDirectory(path)
    config_json = read_json(directory, CONFIG_FILE)
    if config_json is None:
        raise ModelNotFoundError(
            f"{name or directory.path.name}: there is no {CONFIG_FILE}, so this is not a model's directory"
        )
    generation_config = read_json(directory, GENERATION_CONFIG_FILE) or {}
    tokenizer_config = read_tokenizer_config(directory)

    config = parse_config(config_json)
    checkpoint = read_checkpoint(directory)
    if checkpoint is None:
        raise _no_weights(directory)
    weights = SafetensorsWeights(checkpoint, config)
    if config_json.get("dtype") is None and config_json.get("torch_dtype") is None:
        config = replace(config, dtype=_stored_dtype(weights))
    return ModelArtifacts(
        name=name or directory.path.name or "model",
        kind=kind,
        revision=revision,
        config=config,
        weights=weights,
        tokenizer=find_tokenizer(directory, tokenizer_config),
        chat_templates=read_chat_templates(directory, tokenizer_config),
        sampling_defaults=parse_sampling_defaults(generation_config),
        eos_token_ids=union_of_eos(
            config.vocab_size,
            Fields(config_json, CONFIG_FILE),
            Fields(generation_config, GENERATION_CONFIG_FILE),
        ),
        fingerprint=_fingerprint(config, checkpoint),
    )


def read_json(directory: ModelDirectory, name: str) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is no such file. Raises `CheckpointError`."""
    file = directory.find(name)
    return parse_object(file.read(_MAX_CONFIG_BYTES), name) if file else None


def read_tokenizer_config(directory: ModelDirectory) -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``, empty if there is none. Raises `TokenizerError`."""
    try:
        return read_json(directory, TOKENIZER_CONFIG_FILE) or {}
    except CheckpointError as error:
        raise TokenizerError(str(error)) from None


def find_tokenizer(directory: ModelDirectory, tokenizer_config: dict[str, Any]) -> TokenizerSource | None:
    """Return where the tokenizer is; None if the directory has none that can be read."""
    kinds: tuple[tuple[Literal["tokenizer.json", "sentencepiece"], str], ...] = (
        ("tokenizer.json", "tokenizer.json"),
        ("sentencepiece", "tokenizer.model"),
    )
    for kind, name in kinds:
        if file := directory.find(name):
            if file.size > _MAX_TOKENIZER_BYTES:
                raise TokenizerError(
                    f"{name}: has {file.size:,} bytes, over the limit of {_MAX_TOKENIZER_BYTES:,}"
                )
            return TokenizerSource(kind, file.path, tokenizer_config)
    return None


def pickled_weights(directory: ModelDirectory) -> list[str]:
    """Return the names of files that hold weights as Python pickles."""
    return [name for name in directory.names() if name.endswith(_PICKLE_SUFFIXES)]


def _no_weights(directory: ModelDirectory) -> UnsupportedModelError | ModelNotFoundError:
    if pickled := pickled_weights(directory):
        return UnsupportedModelError(
            f"the weights are pickles only, such as {shorten(pickled[0])}; opening one can run code, so "
            "tinyllm never does: use a revision with safetensors files, or convert it with transformers' "
            "save_pretrained"
        )
    if any(name.endswith(".gguf") for name in directory.names()):
        return ModelNotFoundError(
            "no safetensors weights here; to use a GGUF file, give the path of the file"
        )
    return ModelNotFoundError(f"the model's directory has no weights: there is no {SINGLE_FILE}")


def _stored_dtype(weights: SafetensorsWeights) -> str:
    """Return the dtype most of the weights are stored in."""
    sizes: dict[str, int] = {}
    for info in weights.tensors.values():
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    names = {"BF16": "bfloat16", "F16": "float16"}
    return names.get(max(sizes, key=lambda dtype: sizes[dtype]), "float32")


def _fingerprint(config: ModelConfig, checkpoint: Checkpoint) -> str:
    return hashlib.sha256(f"{config!r}\n{checkpoint.digest}".encode()).hexdigest()
