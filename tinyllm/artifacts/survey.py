"""A report on a model that is well formed but not one that tinyllm runs: whatever its files say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from tinyllm.artifacts.config_json import architecture_of
from tinyllm.artifacts.directory import (
    CONFIG_FILE,
    GENERATION_CONFIG_FILE,
    find_tokenizer,
    read_json,
    read_tokenizer_config,
)
from tinyllm.artifacts.files import ModelDirectory
from tinyllm.artifacts.generation_config import parse_sampling_defaults, union_of_eos
from tinyllm.artifacts.json_file import Fields
from tinyllm.artifacts.model import ModelConfig, TensorInfo
from tinyllm.artifacts.report import ModelReport, count_parameters, group_by_dtype
from tinyllm.artifacts.resolve import Location
from tinyllm.artifacts.safetensors import read_checkpoint
from tinyllm.artifacts.templates import read_chat_templates
from tinyllm.errors import UnsupportedModelError

__all__ = ["survey"]

_CONFIG_FIELDS: Final = frozenset(field.name for field in fields(ModelConfig))
_MAX_TOKEN_ID: Final = 1 << 31


def survey(location: Location, reason: str) -> ModelReport:
    """Report on the model at ``location``, which cannot be generated with for ``reason``.

    Raises an `ArtifactError` if a file is damaged.
    """
    if location.kind == "gguf":
        return _survey_gguf(location, reason)
    directory = ModelDirectory(location.path)
    config = read_json(directory, CONFIG_FILE) or {}
    generation_config = read_json(directory, GENERATION_CONFIG_FILE) or {}
    tokenizer_config = read_tokenizer_config(directory)
    tokenizer = find_tokenizer(directory, tokenizer_config)
    checkpoint = read_checkpoint(directory)
    text_config = config.get("text_config")  # where models that also see or hear keep the language model's
    sizes = text_config if isinstance(text_config, dict) else config
    return _report(
        location,
        reason,
        architecture=architecture_of(config),
        tensors=checkpoint.tensors.values() if checkpoint else (),
        config={name: value for name, value in sizes.items() if name in _CONFIG_FIELDS and _is_plain(value)},
        context_length=sizes.get("max_position_embeddings"),
        tokenizer=tokenizer.kind if tokenizer else None,
        chat_templates=tuple(read_chat_templates(directory, tokenizer_config)),
        eos_token_ids=union_of_eos(
            _MAX_TOKEN_ID, Fields(sizes, CONFIG_FILE), Fields(generation_config, GENERATION_CONFIG_FILE)
        ),
        sampling_defaults=parse_sampling_defaults(generation_config).model_dump(exclude_none=True),
    )


def _survey_gguf(location: Location, reason: str) -> ModelReport:
    from tinyllm.artifacts.gguf_header import read_header
    from tinyllm.artifacts.gguf_tokenizer import chat_templates

    try:
        header = read_header(location.path)
    except UnsupportedModelError:  # a version or a type of tensor that is not known: nothing else to tell
        return _report(location, reason)
    metadata = header.metadata.values
    architecture = metadata.get("general.architecture")
    return _report(
        location,
        reason,
        architecture=architecture if isinstance(architecture, str) else None,
        tensors=[
            TensorInfo(tensor.name, tensor.type.name, tensor.shape, location.name, tensor.nbytes)
            for tensor in header.tensors.values()
        ],
        context_length=metadata.get(f"{architecture}.context_length"),
        tokenizer="gguf" if "tokenizer.ggml.tokens" in metadata else None,
        chat_templates=tuple(chat_templates(header.metadata)),
    )


def _report(
    location: Location,
    reason: str,
    *,
    architecture: str | None = None,
    tensors: Iterable[TensorInfo] = (),
    config: Mapping[str, Any] | None = None,
    context_length: Any = None,
    tokenizer: str | None = None,
    chat_templates: tuple[str, ...] = (),
    eos_token_ids: tuple[int, ...] = (),
    sampling_defaults: Mapping[str, float] | None = None,
) -> ModelReport:
    tensors = tuple(tensors)
    return ModelReport(
        name=location.name,
        kind=location.kind,
        revision=location.revision,
        architecture=architecture,
        can_generate=False,
        reason=reason,
        num_parameters=count_parameters(tensors) or None,
        stored_dtypes=group_by_dtype(tensors),
        tensors=tensors,
        config=config,
        context_length=context_length if type(context_length) is int else None,
        tokenizer=tokenizer,
        chat_templates=chat_templates,
        eos_token_ids=eos_token_ids,
        sampling_defaults=sampling_defaults or {},
        memory=None,
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, str))
