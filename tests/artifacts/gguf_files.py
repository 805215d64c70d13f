"""Small GGUF files: proper ones by the library's own writer, and broken ones byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 256, 4, 2, 64, 512, 24
"""Rows are whole blocks of every type: K-quants have blocks of 256."""

UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def tokens() -> list[str]:
    """Return a byte-level vocabulary of `VOCAB` tokens."""
    return [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "ab",
        *(chr(97 + index) for index in range(VOCAB - 4)),
    ]


def random_weights(arch: str, *, layers: int = 2, tied: bool = False, seed: int = 0) -> dict[str, np.ndarray]:
    """Return float32 weights by GGUF name."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    weights = {"token_embd.weight": normal(VOCAB, HIDDEN), "output_norm.weight": normal(HIDDEN)}
    if not tied:
        weights["output.weight"] = normal(VOCAB, HIDDEN)
    sizes = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    for layer in range(layers):
        block = {f"attn_{name}.weight": normal(rows, HIDDEN) for name, rows in sizes.items()}
        if arch == "qwen2":
            block |= {f"attn_{name}.bias": normal(rows) for name, rows in sizes.items()}
        if arch == "qwen3":
            block |= {"attn_q_norm.weight": normal(HEAD_DIM), "attn_k_norm.weight": normal(HEAD_DIM)}
        block |= {
            "attn_norm.weight": normal(HIDDEN),
            "ffn_norm.weight": normal(HIDDEN),
            "attn_output.weight": normal(HIDDEN, HEADS * HEAD_DIM),
            "ffn_gate.weight": normal(INTERMEDIATE, HIDDEN),
            "ffn_up.weight": normal(INTERMEDIATE, HIDDEN),
            "ffn_down.weight": normal(HIDDEN, INTERMEDIATE),
        }
        weights |= {f"blk.{layer}.{name}": value for name, value in block.items()}
    return weights


def quantised(values: np.ndarray, kind: Q, rng: np.random.Generator) -> np.ndarray:
    """Return ``values`` in the given type; the library has no K-quantiser, so those are random blocks."""
    if not kind.name.endswith("_K"):
        return np.asarray(gguf.quants.quantize(values, kind))
    block, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (values.size // block, size), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    for start in (208,) if kind == Q.Q6_K else (0, 2):
        blocks[:, start : start + 2] = scale
    return blocks.reshape(*values.shape[:-1], -1)


def write_model(
    path: Path,
    weights: Mapping[str, np.ndarray],
    *,
    arch: str = "llama",
    kind: Q = Q.F32,
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model with its matrices in ``kind`` and its vectors in F32, by the library's writer."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blk.")))
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens())
    writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for key, value in (extra or {}).items():
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
        }
        add.get(type(value), writer.add_array)(key, value)
    rng = np.random.default_rng(1)
    for name, value in weights.items():
        if value.ndim == 1 or name == "rope_freqs.weight":
            writer.add_tensor(name, value)
        else:
            writer.add_tensor(name, quantised(value, kind, rng), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@dataclass
class RawTensor:
    """A tensor description as it will stand in the file; ``dims`` is in GGUF order, innermost first."""

    name: bytes
    dims: Sequence[int]
    type: int = 0
    offset: int | None = None


@dataclass
class RawGGUF:
    """A GGUF file of a tiny Llama, each part of which can be made wrong before `build`."""

    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    key_count: int | None = None
    pairs: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    tensors: list[RawTensor] = field(default_factory=list)
    alignment: int = 32
    data: bytes | None = None

    def __post_init__(self) -> None:
        self.set("general.architecture", "llama")
        sizes = {"block_count": 1, "context_length": 64, "embedding_length": 8, "feed_forward_length": 8}
        sizes |= {"attention.head_count": 2, "attention.head_count_kv": 1}
        for key, value in sizes.items():
            self.set(f"llama.{key}", value)
        self.set("llama.attention.layer_norm_rms_epsilon", 1e-5)
        self.set("tokenizer.ggml.model", "gpt2")
        self.set("tokenizer.ggml.pre", "smollm")
        self.set("tokenizer.ggml.tokens", ["a", "b", "c", "d"])
        self.set("tokenizer.ggml.eos_token_id", 3)
        shapes = {"token_embd": (8, 4), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
        shapes |= {"blk.0.attn_q": (8, 8), "blk.0.attn_k": (8, 4), "blk.0.attn_v": (8, 4)}
        shapes |= {f"blk.0.{name}": (8, 8) for name in ("attn_output", "ffn_gate", "ffn_up", "ffn_down")}
        self.tensors = [RawTensor(f"{name}.weight".encode(), dims) for name, dims in shapes.items()]

    def set(self, key: str, value: Any, kind: int | None = None) -> RawGGUF:
        """Set a metadata key."""
        self.drop(key)
        self.pairs.append((key.encode(), *encode_value(value, kind)))
        return self

    def drop(self, key: str) -> RawGGUF:
        """Remove a metadata key."""
        self.pairs = [pair for pair in self.pairs if pair[0] != key.encode()]
        return self

    def tensor(self, name: str) -> RawTensor:
        """Return a tensor's description, to change it."""
        return next(tensor for tensor in self.tensors if tensor.name == name.encode())

    def build(self) -> bytes:
        """Return the file's bytes."""
        out = bytearray(self.magic + struct.pack("<I", self.version))
        out += struct.pack("<Q", len(self.tensors) if self.tensor_count is None else self.tensor_count)
        out += struct.pack("<Q", len(self.pairs) if self.key_count is None else self.key_count)
        for key, kind, value in self.pairs:
            out += encode_string(key) + struct.pack("<I", kind) + value
        end = 0
        for tensor in self.tensors:
            offset = end if tensor.offset is None else tensor.offset
            size = 4 * int(np.prod([min(dim, 1 << 16) for dim in tensor.dims], dtype=object))
            end += -(-size // self.alignment) * self.alignment
            out += encode_string(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims)
            out += struct.pack("<IQ", tensor.type, offset)
        out += bytes(-len(out) % self.alignment)
        values = np.random.default_rng(2).standard_normal(end // 4 if end < 1 << 20 else 64)
        out += values.astype("<f4").tobytes() if self.data is None else self.data
        return bytes(out)


def encode_string(text: bytes) -> bytes:
    """Return a GGUF string."""
    return struct.pack("<Q", len(text)) + text


def encode_value(value: Any, kind: int | None = None) -> tuple[int, bytes]:
    """Return a value's GGUF type and bytes."""
    match value:
        case bytes():
            return kind or STRING, value
        case str():
            return STRING, encode_string(value.encode())
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return (kind or UINT32), struct.pack("<q" if kind == 11 else "<I", value)
        case float():
            return FLOAT32, struct.pack("<f", value)
    kinds, items = zip(*(encode_value(item) for item in value), strict=True)
    return ARRAY, struct.pack("<IQ", kinds[0], len(items)) + b"".join(items)
