"""From GGUF metadata to the ``config.json`` it was made from, and from GGUF tensor names to the Hub's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tinyllm.artifacts.gguf_header import GGUFHeader
from tinyllm.artifacts.gguf_rope import rope_scaling
from tinyllm.artifacts.json_file import Fields, shorten
from tinyllm.errors import CheckpointError, UnsupportedModelError

__all__ = ["ROPE_FACTORS", "config_values", "hugging_face_name"]

ARCHITECTURES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

ROPE_FACTORS: Final = "rope_freqs.weight"
"""Not a weight: how llama3 scaling stretches each frequency."""

_TOP_LEVEL: Final[Mapping[str, str]] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_PER_LAYER: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")
_TOP_NAME: Final = re.compile(r"([a-z_]+)\.(weight|bias)")

_MAX_SIZE: Final = 1 << 24


def hugging_face_name(name: str) -> str | None:
    """Return the Hugging Face name of GGUF tensor ``name``, or None if the supported models have no such."""
    if match := _LAYER_NAME.fullmatch(name):
        layer, module, kind = match.groups()
        return f"model.layers.{layer}.{_PER_LAYER[module]}.{kind}" if module in _PER_LAYER else None
    if (match := _TOP_NAME.fullmatch(name)) and match[1] in _TOP_LEVEL:
        return f"{_TOP_LEVEL[match[1]]}.{match[2]}"
    return None


def config_values(header: GGUFHeader, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """Return the fields of the model's ``config.json``; ``rope_factors`` is the content of `ROPE_FACTORS`.

    They are in the form that every version of ``transformers`` reads. Raises `UnsupportedModelError` for
    another architecture or a feature that is not supported, and `CheckpointError` for a key that is missing
    or wrong.
    """
    metadata, tensors = header.metadata, header.tensors
    arch = _architecture(metadata)

    def size(key: str, default: int | None = None) -> int:
        return metadata.integer(f"{arch}.{key}", default, maximum=_MAX_SIZE)

    if "token_embd.weight" not in tensors:
        raise CheckpointError(
            "is missing; this is not a whole model", file=header.file.name, tensor="token_embd.weight"
        )
    layers = size("block_count")
    if layers > len(tensors):
        raise metadata.fault(f"{arch}.block_count", f"is {layers}, but there are only {len(tensors)} tensors")
    heads = size("attention.head_count")
    head_dim = size("attention.key_length", size("embedding_length") // heads or 1)
    for key in ("attention.value_length", "rope.dimension_count"):
        if size(key, head_dim) != head_dim:
            raise UnsupportedModelError(f"{metadata.file}: {arch}.{key} other than the head's {head_dim}")
    theta, scaling = rope_scaling(metadata, arch, head_dim, rope_factors)
    return {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_act": "silu",
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "hidden_size": size("embedding_length"),
        "intermediate_size": size("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata.integer(f"{arch}.context_length", maximum=1 << 31),
        "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon", minimum=0, maximum=1),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "attention_bias": arch == "llama" and "blk.0.attn_q.bias" in tensors,
        "mlp_bias": arch == "llama" and "blk.0.ffn_up.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": _dtype(header),
        "use_cache": True,
    }


def _architecture(metadata: Fields) -> str:
    kind = metadata.string("general.type", "model")
    arch = metadata.string("general.architecture")
    if kind != "model" or arch not in ARCHITECTURES:
        what = arch if kind == "model" else f"{arch} {kind}"
        raise UnsupportedModelError(
            f"{metadata.file}: a GGUF file of {shorten(what)} is not supported, "
            f"only models of {', '.join(ARCHITECTURES)}"
        )
    if metadata.integer("split.count", 1, minimum=0, maximum=1 << 16) > 1:
        raise UnsupportedModelError(
            f"{metadata.file}: a GGUF split over several files is not supported; "
            "join them first, with llama-gguf-split --merge"
        )
    for key in (f"{arch}.expert_count", f"{arch}.attention.sliding_window"):
        if metadata.values.get(key, 0) != 0:
            raise UnsupportedModelError(f"{metadata.file}: {key} is not supported")
    return arch


def _dtype(header: GGUFHeader) -> str:
    """Return the dtype that holds the matrices as they are, or bfloat16 for quantised ones.

    A quantised weight is a few bits times a float16 scale, so rounding it to bfloat16 adds less error than
    quantising did; bfloat16 has the range float16 lacks, and nearly all of these models were published in it.
    """
    stored = {tensor.type.name for tensor in header.tensors.values() if len(tensor.shape) > 1}
    if not stored <= {"F32", "F16", "BF16"} or stored == {"BF16"}:
        return "bfloat16"
    return "float16" if stored == {"F16"} else "float32"
