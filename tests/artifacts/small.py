"""A checkpoint of a few kilobytes that opens, for tests to change."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tinyllm.artifacts.config_json import parse_config
from tinyllm.artifacts.layout import expected_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "eos_token_id": 2,
    "hidden_act": "silu",
}

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def weights(config: dict[str, Any]) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return seeded random tensors of the config's shapes."""
    random = np.random.default_rng(0)
    shapes = expected_tensors(parse_config(config))
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_model(path: Path, config: dict[str, Any] = CONFIG, *, sharded: bool = False) -> Path:
    """Write a whole checkpoint and return its directory."""
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / "config.json", config)
    write_json(path / "generation_config.json", {"eos_token_id": [2, 3], "top_p": 0.9})
    write_json(path / "tokenizer_config.json", {"chat_template": "{{ messages }}"})
    write_json(path / "tokenizer.json", {"model": {"type": "BPE", "vocab": {}, "merges": []}})
    tensors = weights(config)
    if not sharded:
        save_file(tensors, path / SINGLE)
        return path
    weight_map = {name: SHARDS[number % 2] for number, name in enumerate(tensors)}
    for shard in SHARDS:
        save_file({name: tensors[name] for name in tensors if weight_map[name] == shard}, path / shard)
    write_json(path / INDEX, {"metadata": {}, "weight_map": weight_map})
    return path


def write_json(path: Path, value: Any) -> None:
    """Write JSON as Python does: NaN stays NaN."""
    path.write_text(json.dumps(value))


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file."""
    write_json(path, json.loads(path.read_text()) | changes)


def split_file(path: Path) -> tuple[dict[str, Any], bytes]:
    """Return a safetensors file's header and data."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join_file(path: Path, header: Any, data: bytes, *, length: int | None = None) -> None:
    """Write a safetensors file from a header (JSON value or bytes), right or wrong."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
