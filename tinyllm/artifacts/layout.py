"""Which tensors a model has, by name and shape, as its config says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tinyllm.artifacts.json_file import shorten
from tinyllm.artifacts.model import ModelConfig, TensorInfo
from tinyllm.errors import CheckpointError

__all__ = ["check_against_layout", "expected_tensors"]

_DERIVED: Final = re.compile(r"\.rotary_emb\.(inv_freq|cos_cached|sin_cached)$|\.attn\.(bias|masked_bias)$")
"""Buffers that old exports stored; they follow from the config."""


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor the model needs, by its Hugging Face name, in the model's order.

    Linear weights are ``[out_features, in_features]``. A tied head has no tensor of its own.
    """
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer_tensors(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    q_size = config.num_attention_heads * config.head_dim
    kv_size = config.num_key_value_heads * config.head_dim

    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, size in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
        shapes[f"self_attn.{name}.weight"] = (size, hidden)
        if config.attention_bias:
            shapes[f"self_attn.{name}.bias"] = (size,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["self_attn.o_proj.weight"] = (hidden, q_size)
    if config.attention_output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)

    shapes["post_attention_layernorm.weight"] = (hidden,)
    for name, rows, columns in (
        ("gate_proj", intermediate, hidden),
        ("up_proj", intermediate, hidden),
        ("down_proj", hidden, intermediate),
    ):
        shapes[f"mlp.{name}.weight"] = (rows, columns)
        if config.mlp_bias:
            shapes[f"mlp.{name}.bias"] = (rows,)
    return shapes


def check_against_layout(
    config: ModelConfig, tensors: Mapping[str, TensorInfo], file: str
) -> dict[str, TensorInfo]:
    """Return the tensors the model needs, in the model's order.

    Raises `CheckpointError` for a missing tensor (blaming ``file``, the checkpoint's main file), one of
    another shape than the config says, and one the model has no place for. Buffers that follow from the
    config, and a separate head beside a tied one, are left out.
    """
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in tensors]
    if missing:
        more = f" ({len(missing)} are missing in all)" if len(missing) > 1 else ""
        raise CheckpointError(
            f"the config asks for this tensor, but it is missing{more}; fetch the model's files again",
            file=file,
            tensor=missing[0],
        )
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise CheckpointError(
                f"has shape {list(tensors[name].shape)}, but the config asks for {list(shape)}",
                file=tensors[name].file,
                tensor=name,
            )
    for name, info in tensors.items():
        if name not in expected and name != "lm_head.weight" and not _DERIVED.search(name):
            raise CheckpointError(
                f"tensor {shorten(name)} has no place in a {config.architecture} with this config; "
                "config and weights do not belong together",
                file=info.file,
            )
    return {name: tensors[name] for name in expected}
