"""``config.json`` as a `ModelConfig`: both generations of its field names, every value checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tinyllm.artifacts.json_file import Fields, shorten
from tinyllm.artifacts.model import ModelConfig, RopeConfig
from tinyllm.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES", "architecture_of", "parse_config"]


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What a class of models fixes, and the defaults of the fields its configs may leave out."""

    model_type: str
    head_dim: int | None = None
    """Default; None is hidden_size / num_attention_heads."""
    num_key_value_heads: int | None = None
    """Default of a missing field; None, and a field that is null, is num_attention_heads."""
    max_position_embeddings: int = 32_768
    qkv_bias: bool | None = None
    """None: as the config's attention_bias says, which then holds for the output projection too."""
    mlp_bias: bool = False
    """Whether the config's mlp_bias counts."""
    qk_norm: bool = False
    sliding_window: bool = False
    """Whether the config's use_sliding_window counts."""


ARCHITECTURES: Final[Mapping[str, _Architecture]] = {
    "LlamaForCausalLM": _Architecture("llama", max_position_embeddings=2048, mlp_bias=True),
    "Qwen2ForCausalLM": _Architecture("qwen2", num_key_value_heads=32, qkv_bias=True, sliding_window=True),
    "Qwen3ForCausalLM": _Architecture(
        "qwen3", head_dim=128, num_key_value_heads=32, qk_norm=True, sliding_window=True
    ),
}
"""The architectures tinyllm runs, by the name in ``architectures``."""

_MAX_SIZE: Final = 1 << 24
"""Far above any model, and low enough that no product of sizes is absurd."""
_MAX_LAYERS: Final = 2048
_MAX_LENGTH: Final = 1 << 31
_DTYPES: Final = ("float32", "bfloat16", "float16")


def parse_config(values: Mapping[str, Any], *, file: str = "config.json") -> ModelConfig:
    """Return the model's shape and options, with the defaults that ``transformers`` has.

    Raises `CheckpointError` naming the field for a wrong value, `UnsupportedModelError` for a model that is
    well formed but not run here. Without a dtype in the config, ``float32`` is assumed.
    """
    fields = Fields(values, file)
    name = architecture_of(values, file=file)
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise UnsupportedModelError(
            f"architecture {shorten(name)} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    _refuse_unsupported(fields, architecture)

    hidden_size = fields.integer("hidden_size", maximum=_MAX_SIZE)
    num_heads = fields.integer("num_attention_heads", maximum=_MAX_SIZE)
    attention_bias = fields.boolean("attention_bias", False)
    return ModelConfig(
        architecture=name,
        vocab_size=fields.integer("vocab_size", maximum=_MAX_SIZE),
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size", maximum=_MAX_SIZE),
        num_hidden_layers=fields.integer("num_hidden_layers", maximum=_MAX_LAYERS),
        num_attention_heads=num_heads,
        num_key_value_heads=_num_key_value_heads(fields, architecture, num_heads),
        head_dim=_head_dim(fields, architecture, hidden_size, num_heads),
        max_position_embeddings=_max_position_embeddings(fields, architecture),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6, minimum=0, maximum=1),
        rope=_rope(fields, _max_position_embeddings(fields, architecture)),
        attention_bias=attention_bias if architecture.qkv_bias is None else architecture.qkv_bias,
        attention_output_bias=attention_bias if architecture.qkv_bias is None else False,
        mlp_bias=fields.boolean("mlp_bias", False) and architecture.mlp_bias,
        qk_norm=architecture.qk_norm,
        tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
        dtype=_dtype(fields),
    )


def architecture_of(values: Mapping[str, Any], *, file: str = "config.json") -> str:
    """Return the class name of the model, from ``architectures`` or else from ``model_type``."""
    fields = Fields(values, file)
    names = fields.sequence("architectures", [])
    if names:
        if not isinstance(names[0], str):
            raise fields.fault("architectures", f"must be a list of names, not of {shorten(names[0])}")
        return names[0]
    model_type = fields.string("model_type")
    known = {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
    return known.get(model_type, model_type)


def _refuse_unsupported(fields: Fields, architecture: _Architecture) -> None:
    if fields.values.get("quantization_config") is not None:
        method = fields.mapping("quantization_config").get("quant_method", "of an unknown kind")
        raise UnsupportedModelError(
            f"{fields.file}: the weights are quantised ({shorten(method)}), which is not supported; "
            "use the original model or a GGUF file of it"
        )
    activation = fields.string("hidden_act", "silu")
    if activation not in ("silu", "swish"):  # two names of one function
        raise UnsupportedModelError(
            f"{fields.file}: hidden_act {shorten(activation)} is not supported, only 'silu'"
        )
    if _slides(fields, architecture):
        raise UnsupportedModelError(
            f"{fields.file}: layers without full attention (sliding window) are not supported"
        )


def _slides(fields: Fields, architecture: _Architecture) -> bool:
    """Whether any layer attends to a window only. Qwen configs carry a window that they do not use."""
    if fields.has("layer_types"):
        layer_types = fields.sequence("layer_types")
        if len(layer_types) != fields.integer("num_hidden_layers", maximum=_MAX_LAYERS):
            raise fields.fault("layer_types", f"must have an entry for each layer, not {len(layer_types)}")
        return any(kind != "full_attention" for kind in layer_types)
    if not architecture.sliding_window or not fields.boolean("use_sliding_window", False):
        return False
    window = fields.values.get("sliding_window", 4096)
    first = fields.integer("max_window_layers", 28, minimum=0, maximum=_MAX_SIZE)
    return window is not None and first < fields.integer("num_hidden_layers", maximum=_MAX_LAYERS)


def _num_key_value_heads(fields: Fields, architecture: _Architecture, num_heads: int) -> int:
    missing = "num_key_value_heads" not in fields.values
    default = architecture.num_key_value_heads if missing else None
    value = fields.integer("num_key_value_heads", default or num_heads, maximum=_MAX_SIZE)
    if num_heads % value:
        raise fields.fault(
            "num_key_value_heads", f"must divide num_attention_heads ({num_heads}), not {value}"
        )
    return value


def _head_dim(fields: Fields, architecture: _Architecture, hidden_size: int, num_heads: int) -> int:
    default = architecture.head_dim
    if default is None and not fields.has("head_dim"):
        if hidden_size % num_heads:
            raise fields.fault(
                "num_attention_heads", f"must divide hidden_size ({hidden_size}), not {num_heads}"
            )
        default = hidden_size // num_heads
    value = fields.integer("head_dim", default, maximum=_MAX_SIZE)
    if value % 2:
        raise fields.fault("head_dim", f"must be even for rotary embedding, not {value}")
    return value


def _max_position_embeddings(fields: Fields, architecture: _Architecture) -> int:
    return fields.integer(
        "max_position_embeddings", architecture.max_position_embeddings, maximum=_MAX_LENGTH
    )


def _dtype(fields: Fields) -> str:
    field = "dtype" if fields.has("dtype") else "torch_dtype"
    value = fields.string(field, "float32").removeprefix("torch.")
    if value not in _DTYPES:
        raise UnsupportedModelError(
            f"{fields.file}: {field} {shorten(value)} is not supported, only {', '.join(_DTYPES)}"
        )
    return value


def _rope(fields: Fields, max_position_embeddings: int) -> RopeConfig:
    """Read ``rope_parameters``, or the older ``rope_scaling`` beside ``rope_theta``."""
    source = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
    rope = Fields(fields.mapping(source, {}), fields.file, f"{source}.")
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise UnsupportedModelError(f"{fields.file}: {source} that differ by layer are not supported")

    def place(name: str) -> Fields:
        return rope if rope.has(name) else fields

    if place("partial_rotary_factor").number("partial_rotary_factor", 1, minimum=0, maximum=1) != 1:
        raise UnsupportedModelError(f"{fields.file}: partial_rotary_factor other than 1 is not supported")

    theta = place("rope_theta").number("rope_theta", 10_000, minimum=2, maximum=1e12)
    kind = rope.string("rope_type" if rope.has("rope_type") else "type", "default")
    original = (fields if fields.has("original_max_position_embeddings") else rope).integer(
        "original_max_position_embeddings", max_position_embeddings, maximum=_MAX_LENGTH
    )
    match kind:
        case "default":
            return RopeConfig(theta=theta)
        case "linear":
            return RopeConfig("linear", theta, _factor(rope))
        case "llama3":
            return _llama3(rope, theta, original)
        case "yarn":
            return _yarn(rope, theta, original, max_position_embeddings)
    raise UnsupportedModelError(
        f"{fields.file}: rope type {shorten(kind)} is not supported, only default, linear, llama3 and yarn"
    )


def _factor(rope: Fields, default: float | None = None) -> float:
    return rope.number("factor", default, minimum=1, maximum=1e6)


def _llama3(rope: Fields, theta: float, original: int) -> RopeConfig:
    low = rope.number("low_freq_factor", minimum=1e-6, maximum=1e6)
    high = rope.number("high_freq_factor", minimum=1e-6, maximum=1e6)
    if high <= low:
        raise rope.fault("high_freq_factor", f"must be more than low_freq_factor ({low:g}), not {high:g}")
    return RopeConfig(
        "llama3",
        theta,
        _factor(rope),
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(rope: Fields, theta: float, original: int, max_position_embeddings: int) -> RopeConfig:
    def optional(name: str) -> float | None:
        return rope.number(name, minimum=0, maximum=1e6) if rope.has(name) else None

    beta_fast, beta_slow = _turns(rope, "beta_fast", 32.0), _turns(rope, "beta_slow", 1.0)
    if beta_fast < beta_slow:
        raise rope.fault("beta_fast", f"must not be less than beta_slow ({beta_slow:g}), not {beta_fast:g}")
    return RopeConfig(
        "yarn",
        theta,
        _factor(rope, default=max(1.0, max_position_embeddings / original)),
        original_max_position_embeddings=original,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale"),
        mscale_all_dim=optional("mscale_all_dim"),
        truncate=rope.boolean("truncate", True),
    )


def _turns(rope: Fields, name: str, default: float) -> float:
    """Read how often a pair turns in the original context; 0 counts as missing, as in ``transformers``."""
    if rope.values.get(name) == 0:
        return default
    return rope.number(name, default, minimum=1e-6, maximum=1e6)
