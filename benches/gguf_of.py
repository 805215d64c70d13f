"""A checkpoint as a GGUF file, for llama.cpp.

From a Qwen checkpoint one is made: its rows stand in the same order there. For others a file is needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import gguf

from tinyllm.artifacts.model import ModelArtifacts, ModelConfig
from tinyllm.artifacts.resolve import open_model
from tinyllm.bench.gguf_as import GGUF_TYPES, convert
from tinyllm.errors import ConfigError

ARCHITECTURES: Final = {
    "Qwen2ForCausalLM": gguf.MODEL_ARCH.QWEN2,
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
}
MATRIX_TYPES: Final = {"F32": gguf.GGMLQuantizationType.F32, "BF16": gguf.GGMLQuantizationType.BF16}


def gguf_of(checkpoint: Path, given: Path | None, dtype: str, directory: Path) -> Path:
    """Return the model as a GGUF file in ``dtype``, made the first time: from ``given``, or the checkpoint.

    Raises `ConfigError` where there is neither a file given nor a Qwen.
    """
    kind = GGUF_TYPES[dtype]
    target = directory / f"{given.stem if given else checkpoint.name}-{kind}.gguf"
    if target.exists():
        return target
    print(f"making {target.name}", file=sys.stderr, flush=True)
    partial = target.with_suffix(".partial")
    if given:
        convert(given, partial, kind)
    else:
        write_gguf(checkpoint, partial, kind)
    return partial.rename(target)


def write_gguf(checkpoint: Path, target: Path, kind: str) -> None:
    """Write the checkpoint to ``target``, matrices as ``kind``: F32 or BF16.

    Raises `ConfigError` for models that are no Qwen or stretch their rotary embedding.
    """
    model = open_model(str(checkpoint))
    config = model.config
    architecture = ARCHITECTURES.get(config.architecture)
    if architecture is None or config.rope.kind != "default":
        raise ConfigError(f"{checkpoint.name} cannot be made a GGUF file here: give one with --gguf")
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[architecture])
    _add_config(writer, config)
    _add_tokenizer(writer, checkpoint, config.vocab_size, model.eos_token_ids[0])
    _add_tensors(writer, model, gguf.get_tensor_name_map(architecture, config.num_hidden_layers), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_config(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)


def _add_tokenizer(writer: gguf.GGUFWriter, checkpoint: Path, vocab_size: int, eos_token_id: int) -> None:
    source: dict[str, Any] = json.loads((checkpoint / "tokenizer.json").read_text())
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    kinds = [gguf.TokenType.UNUSED] * vocab_size
    for text, number in source["model"]["vocab"].items():
        tokens[number], kinds[number] = text, gguf.TokenType.NORMAL
    for added in source["added_tokens"]:
        kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merges = source["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_eos_token_id(eos_token_id)
    writer.add_add_bos_token(False)


def _add_tensors(
    writer: gguf.GGUFWriter, model: ModelArtifacts, names: gguf.TensorNameMap, kind: str
) -> None:
    import torch  # late: it must find its threads prepared

    for name, info in model.weights.tensors.items():
        values = torch.empty(info.shape)
        model.weights.read_into(name, values)
        their_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1:
            writer.add_tensor(their_name, values.numpy())
        else:
            data = gguf.quants.quantize(values.numpy(), MATRIX_TYPES[kind])
            writer.add_tensor(their_name, data, raw_dtype=MATRIX_TYPES[kind])
