"""GGUF files: every type read exactly, rows back in order, settings recovered, hostile files refused."""

from __future__ import annotations

import math
import os
import random
import re
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Q
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.artifacts.gguf_files import (
    ARRAY,
    HEAD_DIM,
    HIDDEN,
    STRING,
    VOCAB,
    RawGGUF,
    RawTensor,
    encode_string,
    quantised,
    random_weights,
    tokens,
    write_model,
)
from tests.limits import refused_within_limits
from tinyllm.artifacts import gguf_weights
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.gguf import open_gguf
from tinyllm.artifacts.gguf_config import hugging_face_name
from tinyllm.artifacts.gguf_header import SUPPORTED_TYPES, read_header, write_vocabulary_only
from tinyllm.artifacts.gguf_rope import llama3_factors, recover_llama3
from tinyllm.artifacts.layout import expected_tensors
from tinyllm.artifacts.model import ModelArtifacts, RopeConfig
from tinyllm.errors import (
    ArtifactError,
    CheckpointError,
    ModelNotFoundError,
    TokenizerError,
    UnsupportedModelError,
)


def read(model: ModelArtifacts, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.empty(model.weights.tensors[name].shape, dtype=dtype)
    model.weights.read_into(name, out)
    return out


# What a proper file says.


@pytest.mark.parametrize("kind", sorted(SUPPORTED_TYPES), ids=lambda kind: kind.name)
@pytest.mark.parametrize("slice_elements", [HIDDEN, 3 * HIDDEN, 1 << 18])
def test_every_type_reads_as_the_library_dequantises_it(
    kind: Q, slice_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.gguf", random_weights("qwen3"), arch="qwen3", kind=kind)
    monkeypatch.setattr(gguf_weights, "SLICE_ELEMENTS", slice_elements)
    model = open_gguf(path)
    for tensor in gguf.GGUFReader(path).tensors:
        expected = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        name = hugging_face_name(tensor.name)
        assert name is not None
        assert torch.equal(read(model, name), expected), tensor.name
        assert torch.equal(read(model, name, torch.bfloat16), expected.bfloat16())
        if tensor.data.ndim > 1:
            assert model.weights.tensors[name].dtype == kind.name


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [((Q.F32,), "float32"), ((Q.F16,), "float16"), ((Q.BF16,), "bfloat16"), ((Q.Q8_0,), "bfloat16")],
)
def test_dtype_is_the_stored_one_or_bfloat16_when_quantised(
    kinds: tuple[Q], dtype: str, tmp_path: Path
) -> None:
    path = write_model(tmp_path / "m.gguf", random_weights("qwen2"), arch="qwen2", kind=kinds[0])
    assert open_gguf(path).config.dtype == dtype


def interleave(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Put row ``i`` of a head's first half beside row ``i`` of its second, as llama.cpp stores q and k."""
    order = [
        head + half * (head_dim // 2) + index
        for head in range(0, len(rows), head_dim)
        for index in range(head_dim // 2)
        for half in (0, 1)
    ]
    return rows[order]


@pytest.mark.parametrize("slice_elements", [1, HEAD_DIM * HIDDEN, 1 << 18])
def test_llama_rotary_rows_are_put_back(
    slice_elements: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = random_weights("llama", layers=1)
    weights |= {
        f"blk.0.attn_{name}.bias": weights[f"blk.0.attn_{name}.weight"][:, 0].copy() for name in "qkv"
    }
    weights["blk.0.attn_output.bias"] = weights["blk.0.attn_norm.weight"]
    stored = dict(weights)
    for name in ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias"):
        stored[f"blk.0.{name}"] = interleave(weights[f"blk.0.{name}"], HEAD_DIM)
    monkeypatch.setattr(gguf_weights, "SLICE_ELEMENTS", slice_elements)
    model = open_gguf(write_model(tmp_path / "m.gguf", stored))
    for name, value in weights.items():
        translated = hugging_face_name(name)
        assert translated is not None
        assert torch.equal(read(model, translated), torch.from_numpy(value)), name


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_names_are_those_of_the_library(arch: str, tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", random_weights(arch), arch=arch)
    model = open_gguf(path)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], 2)
    expected = {
        names.get_name(name, try_suffixes=(".weight", ".bias")): name
        for name in expected_tensors(model.config)
    }
    stored = {tensor.name for tensor in gguf.GGUFReader(path).tensors}
    assert {name: hugging_face_name(name) for name in stored} == expected


def test_header_agrees_with_the_library_s_reader(tmp_path: Path) -> None:
    extra = {"general.alignment": 64, "x.flag": True, "x.numbers": [1.5, -2.0], "x.text": "ü"}
    path = write_model(tmp_path / "m.gguf", random_weights("llama"), extra=extra)
    header, reader = read_header(path), gguf.GGUFReader(path)
    fields = {key: value.contents() for key, value in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.metadata.values.keys() == fields.keys()
    for key, value in fields.items():
        assert header.metadata.values[key] == (pytest.approx(value) if isinstance(value, float) else value)
    assert {name: (t.offset, t.nbytes, list(t.shape)) for name, t in header.tensors.items()} == {
        t.name: (t.data_offset, t.n_bytes, t.shape.tolist()[::-1]) for t in reader.tensors
    }


def test_config_and_tokenizer_of_a_small_model(tmp_path: Path) -> None:
    extra: dict[str, Any] = {
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
    }
    model = open_gguf(write_model(tmp_path / "m.gguf", random_weights("qwen3"), arch="qwen3", extra=extra))
    config = model.config
    assert (config.architecture, config.vocab_size, config.head_dim) == ("Qwen3ForCausalLM", VOCAB, HEAD_DIM)
    assert config.rms_norm_eps == 1e-5, "the decimal, not its float32 neighbour"
    assert config.qk_norm
    assert not config.tie_word_embeddings
    assert model.kind == "gguf"
    assert model.eos_token_ids == (2, 0)
    assert model.chat_templates == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    assert model.sampling_defaults.model_dump(exclude_none=True) == {"temperature": 0.6, "top_k": 20}
    assert model.tokenizer is not None
    assert model.tokenizer.vocabulary is not None
    assert model.tokenizer.vocabulary.tokens == tuple(tokens())
    assert model.tokenizer.vocabulary.merges == ("a b",)
    assert model.tokenizer.config["bos_token"] == "<|im_start|>"
    assert model.tokenizer.config["add_bos_token"] is True


def test_tied_when_there_is_no_output_matrix(tmp_path: Path) -> None:
    model = open_gguf(write_model(tmp_path / "m.gguf", random_weights("qwen2", tied=True), arch="qwen2"))
    assert model.config.tie_word_embeddings
    assert model.config.attention_bias
    assert "lm_head.weight" not in model.weights.tensors


def test_vocabulary_only_keeps_the_metadata(tmp_path: Path) -> None:
    header = read_header(write_model(tmp_path / "m.gguf", random_weights("llama")))
    write_vocabulary_only(header, tmp_path / "v.gguf")
    copy = read_header(tmp_path / "v.gguf")
    assert copy.metadata.values == header.metadata.values
    assert not copy.tensors
    with pytest.raises(CheckpointError, match="token_embd"):
        open_gguf(tmp_path / "v.gguf")


def test_fingerprint_changes_with_the_header(tmp_path: Path) -> None:
    weights = random_weights("llama")
    one, same, other = (
        open_gguf(write_model(tmp_path / f"{index}.gguf", weights, extra={"x.n": n})).fingerprint
        for index, n in enumerate((1, 1, 2))
    )
    assert one == same != other


# Rotary embeddings.


@pytest.mark.parametrize(
    ("extra", "rope"),
    [
        ({}, RopeConfig("default", 10000.0)),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            RopeConfig("linear", 10000.0, 4.0),
        ),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 4.0,
                "llama.rope.scaling.original_context_length": 128,
                "llama.rope.scaling.yarn_beta_fast": 16.0,
            },
            RopeConfig("yarn", 10000.0, 4.0, original_max_position_embeddings=128, beta_fast=16.0),
        ),
    ],
)
def test_rope_settings(extra: dict[str, Any], rope: RopeConfig, tmp_path: Path) -> None:
    assert (
        open_gguf(write_model(tmp_path / "m.gguf", random_weights("llama"), extra=extra)).config.rope == rope
    )


def float32_factors(theta: float, dim: int, factor: float, low: float, high: float, old: int) -> np.ndarray:
    """Llama 3's formula by wavelength, in float32, as converters compute what they store."""
    out = []
    for pair in range(dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / dim)
        smooth = (old / wavelength - low) / (high - low)
        if wavelength < old / high:
            out.append(1.0)
        elif wavelength > old / low:
            out.append(factor)
        else:
            out.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(out, dtype=np.float32)


@pytest.mark.parametrize(
    ("dim", "factor", "old"), [(128, 8.0, 8192), (128, 32.0, 8192), (64, 32.0, 8192), (16, 8.0, 1024)]
)
def test_llama3_parameters_are_recovered(dim: int, factor: float, old: int) -> None:
    factors = float32_factors(500_000.0, dim, factor, 1.0, 4.0, old)
    assert recover_llama3(factors.tolist(), 500_000.0, dim, "m.gguf") == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": old,
    }


@settings(max_examples=50, deadline=None)
@given(
    factor=st.sampled_from([2.0, 8.0, 16.0, 32.0]),
    low=st.sampled_from([1.0, 2.0]),
    ratio=st.sampled_from([2.0, 4.0, 8.0]),
    old=st.sampled_from([2048, 8192, 16384]),
)
def test_any_llama3_parameters_give_the_same_factors_back(
    factor: float, low: float, ratio: float, old: int
) -> None:
    factors = float32_factors(500_000.0, 128, factor, low, low * ratio, old)
    found = recover_llama3(factors.tolist(), 500_000.0, 128, "m.gguf")
    assert found is not None
    again = llama3_factors(
        500_000.0,
        128,
        factor=found["factor"],
        low=found["low_freq_factor"],
        high=found["high_freq_factor"],
        original=found["original_max_position_embeddings"],
    )
    np.testing.assert_allclose(again, factors, rtol=1e-5)


def test_llama3_factors_in_a_file(tmp_path: Path) -> None:
    weights = random_weights("llama")
    weights["rope_freqs.weight"] = float32_factors(10_000.0, HEAD_DIM, 8.0, 1.0, 4.0, 8192)
    rope = open_gguf(write_model(tmp_path / "m.gguf", weights)).config.rope
    assert rope == RopeConfig(
        "llama3",
        10_000.0,
        8.0,
        original_max_position_embeddings=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )


def test_factors_that_change_nothing_are_no_scaling() -> None:
    assert recover_llama3([1.0] * 64, 10_000.0, 128, "m.gguf") is None


@pytest.mark.parametrize(
    "factors",
    [
        [1.0] * 63,
        [1.0] * 32 + [8.0] * 32,
        [math.nan] * 64,
        [0.0] * 64,
        [1.0 + index / 10 for index in range(64)],
        [*float32_factors(500_000.0, 128, 8.0, 1.0, 4.0, 8192)[:40].tolist(), *[7.0] * 23, 8.0],
    ],
)
def test_other_factors_are_refused(factors: list[float]) -> None:
    with pytest.raises(UnsupportedModelError, match="rope factors"):
        recover_llama3(factors, 500_000.0, 128, "m.gguf")


# Files that are not what they should be.


def change(edit: Callable[[RawGGUF], object]) -> Callable[[], bytes]:
    def build() -> bytes:
        file = RawGGUF()
        edit(file)
        return file.build()

    return build


def put(tensor: str, **fields: Any) -> Callable[[], bytes]:
    def edit(file: RawGGUF) -> None:
        described = file.tensor(tensor)
        for key, value in fields.items():
            setattr(described, key, value)

    return change(edit)


def string_array(count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", STRING, count) + items


HOSTILE: dict[str, tuple[Callable[[], bytes], type[ArtifactError], str]] = {
    "empty file": (lambda: b"", CheckpointError, "cut short"),
    "magic only": (lambda: b"GGUF", CheckpointError, "cut short"),
    "not a GGUF": (lambda: b"\x80\x04" + bytes(100), CheckpointError, "magic"),
    "a zip": (lambda: b"PK\x03\x04" + bytes(100), CheckpointError, "magic"),
    "version 1": (change(lambda f: setattr(f, "version", 1)), UnsupportedModelError, "version 1"),
    "version 0": (change(lambda f: setattr(f, "version", 0)), UnsupportedModelError, "version 0"),
    "version 99": (change(lambda f: setattr(f, "version", 99)), UnsupportedModelError, "version 99"),
    "big-endian": (change(lambda f: setattr(f, "version", 3 << 24)), UnsupportedModelError, "big-endian"),
    "2^63 tensors": (change(lambda f: setattr(f, "tensor_count", 1 << 63)), CheckpointError, "tensors"),
    "2^64-1 keys": (change(lambda f: setattr(f, "key_count", (1 << 64) - 1)), CheckpointError, "keys"),
    "more tensors than there are": (
        change(lambda f: setattr(f, "tensor_count", 12)),
        CheckpointError,
        "dimensions|cut short|longer",
    ),
    "more keys than there are": (
        change(lambda f: setattr(f, "key_count", 4000)),
        CheckpointError,
        "cut short|unknown type|UTF-8",
    ),
    "key of 2^60 bytes": (
        lambda: b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60),
        CheckpointError,
        "cut short",
    ),
    "key of 100 kB": (
        change(lambda f: f.pairs.append((b"k" * 100_000, 4, bytes(4)))),
        CheckpointError,
        "longer",
    ),
    "value of 2^50 bytes": (
        change(lambda f: f.set("x", struct.pack("<Q", 1 << 50))),
        CheckpointError,
        "cut short",
    ),
    "key not UTF-8": (
        change(lambda f: f.pairs.append((b"\xff\xfe", 4, bytes(4)))),
        CheckpointError,
        "UTF-8",
    ),
    "text not UTF-8": (
        change(lambda f: f.set("x", encode_string(b"\xc3\x28"))),
        CheckpointError,
        "UTF-8",
    ),
    "token not UTF-8": (
        change(lambda f: f.set("tokenizer.ggml.tokens", string_array(1, encode_string(b"\xff")), ARRAY)),
        CheckpointError,
        "UTF-8",
    ),
    "unknown value type": (
        change(lambda f: f.pairs.append((b"x", 77, bytes(8)))),
        CheckpointError,
        "unknown type 77",
    ),
    "array in an array": (
        change(lambda f: f.set("x", struct.pack("<IQIQ", ARRAY, 1, 4, 0), ARRAY)),
        CheckpointError,
        "unknown type 9",
    ),
    "array of 2^62 numbers": (
        change(lambda f: f.set("x", struct.pack("<IQ", 12, 1 << 62), ARRAY)),
        CheckpointError,
        "elements",
    ),
    "array of a million strings that are not there": (
        change(lambda f: f.set("x", string_array(1_000_000), ARRAY)),
        CheckpointError,
        "cut short|UTF-8",
    ),
    "three million empty strings": (
        change(lambda f: f.set("x", string_array(3_000_000, bytes(8 * 3_000_000)), ARRAY)),
        CheckpointError,
        "elements",
    ),
    "header of 70 MB": (
        change(lambda f: f.set("x", "x" * (70 << 20))),
        CheckpointError,
        "header of more",
    ),
    "key twice": (
        change(lambda f: f.pairs.append(f.pairs[0])),
        CheckpointError,
        "twice",
    ),
    "tensor twice": (change(lambda f: f.tensors.append(f.tensors[0])), CheckpointError, "twice"),
    "no dimensions": (put("output_norm.weight", dims=()), CheckpointError, "0 dimensions"),
    "a hundred dimensions": (put("output_norm.weight", dims=(1,) * 100), CheckpointError, "100 dimensions"),
    "dimension of 0": (put("output_norm.weight", dims=(0,)), CheckpointError, "empty"),
    "dimension of 2^63": (put("output_norm.weight", dims=(1 << 63,)), CheckpointError, "cut short"),
    "product over 2^64": (put("token_embd.weight", dims=(1 << 40, 1 << 40)), CheckpointError, "cut short"),
    "product that wraps to 0": (
        put("token_embd.weight", dims=(1 << 32, 1 << 32)),
        CheckpointError,
        "cut short",
    ),
    "offset past the end": (put("blk.0.ffn_down.weight", offset=1 << 40), CheckpointError, "cut short"),
    "offset of 2^64-32": (put("blk.0.ffn_down.weight", offset=(1 << 64) - 32), CheckpointError, "cut short"),
    "offset not aligned": (put("blk.0.ffn_down.weight", offset=1 << 12 | 4), CheckpointError, "aligned"),
    "tensors overlap": (put("blk.0.ffn_down.weight", offset=0), CheckpointError, "overlaps"),
    "data cut short": (lambda: RawGGUF().build()[:-300], CheckpointError, "cut short"),
    "no data": (change(lambda f: setattr(f, "data", b"")), CheckpointError, "cut short"),
    "unknown tensor type": (put("token_embd.weight", type=12345), CheckpointError, "unknown type 12345"),
    "IQ2_XXS": (put("token_embd.weight", type=int(Q.IQ2_XXS)), UnsupportedModelError, "IQ2_XXS"),
    "Q2_K": (put("token_embd.weight", type=int(Q.Q2_K)), UnsupportedModelError, "Q2_K"),
    "rows not whole blocks": (
        put("token_embd.weight", type=int(Q.Q8_0)),
        CheckpointError,
        "whole Q8_0 blocks",
    ),
    "tensor name of 1 kB": (put("output_norm.weight", name=b"n" * 1000), CheckpointError, "name is longer"),
    "tensor name not UTF-8": (put("output_norm.weight", name=b"\xff"), CheckpointError, "UTF-8"),
    "alignment 0": (change(lambda f: f.set("general.alignment", 0)), CheckpointError, "general.alignment"),
    "alignment 3": (change(lambda f: f.set("general.alignment", 3)), CheckpointError, "power of two"),
    "alignment 2^31": (
        change(lambda f: f.set("general.alignment", 1 << 31)),
        CheckpointError,
        "general.alignment",
    ),
    "alignment as text": (
        change(lambda f: f.set("general.alignment", "32")),
        CheckpointError,
        "general.alignment",
    ),
    "no architecture": (
        change(lambda f: f.drop("general.architecture")),
        CheckpointError,
        "general.architecture",
    ),
    "architecture unknown": (
        change(lambda f: f.set("general.architecture", "gpt2")),
        UnsupportedModelError,
        "'gpt2'",
    ),
    "architecture a number": (
        change(lambda f: f.set("general.architecture", 7)),
        CheckpointError,
        "general.architecture",
    ),
    "an adapter": (change(lambda f: f.set("general.type", "adapter")), UnsupportedModelError, "adapter"),
    "a split file": (change(lambda f: f.set("split.count", 4)), UnsupportedModelError, "split"),
    "experts": (change(lambda f: f.set("llama.expert_count", 8)), UnsupportedModelError, "expert_count"),
    "sliding window": (
        change(lambda f: f.set("llama.attention.sliding_window", 4096)),
        UnsupportedModelError,
        "sliding_window",
    ),
    "no hidden size": (
        change(lambda f: f.drop("llama.embedding_length")),
        CheckpointError,
        "embedding_length",
    ),
    "hidden size 2^32-1": (
        change(lambda f: f.set("llama.embedding_length", 2**32 - 1)),
        CheckpointError,
        "embedding_length",
    ),
    "two billion layers": (
        change(lambda f: f.set("llama.block_count", 2_000_000_000)),
        CheckpointError,
        "block_count",
    ),
    "more layers than tensors": (
        change(lambda f: f.set("llama.block_count", 500)),
        CheckpointError,
        "block_count",
    ),
    "no heads": (change(lambda f: f.set("llama.attention.head_count", 0)), CheckpointError, "head_count"),
    "three kv heads for two": (
        change(lambda f: f.set("llama.attention.head_count_kv", 3)),
        CheckpointError,
        "num_key_value_heads",
    ),
    "heads per layer": (
        change(lambda f: f.set("llama.attention.head_count_kv", [1, 1])),
        CheckpointError,
        "head_count_kv",
    ),
    "eps is NaN": (
        change(lambda f: f.set("llama.attention.layer_norm_rms_epsilon", math.nan)),
        CheckpointError,
        "epsilon",
    ),
    "rope theta is infinite": (
        change(lambda f: f.set("llama.rope.freq_base", math.inf)),
        CheckpointError,
        "freq_base",
    ),
    "partial rotary": (
        change(lambda f: f.set("llama.rope.dimension_count", 2)),
        UnsupportedModelError,
        "dimension_count",
    ),
    "rope scaling unknown": (
        change(lambda f: f.set("llama.rope.scaling.type", "longrope")),
        UnsupportedModelError,
        "longrope",
    ),
    "rope factors absurd": (
        change(lambda f: f.tensors.append(RawTensor(b"rope_freqs.weight", (8,)))),
        UnsupportedModelError,
        "rope factors",
    ),
    "rope factors by the thousand": (
        change(lambda f: f.tensors.append(RawTensor(b"rope_freqs.weight", (50_000,)))),
        CheckpointError,
        "50000 elements",
    ),
    "tensor missing": (change(lambda f: f.tensors.pop()), CheckpointError, "missing"),
    "tensor too many": (
        change(lambda f: f.tensors.append(RawTensor(b"blk.0.attn_qkv.weight", (8, 8)))),
        CheckpointError,
        "no place",
    ),
    "layer 1 of 1": (
        change(lambda f: f.tensors.append(RawTensor(b"blk.1.ffn_up.weight", (8, 8)))),
        CheckpointError,
        "no place",
    ),
    "layer 00": (
        change(lambda f: f.tensors.append(RawTensor(b"blk.00.ffn_up.weight", (8, 8)))),
        CheckpointError,
        "no place",
    ),
    "wrong shape": (put("blk.0.attn_k.weight", dims=(8, 8)), CheckpointError, "shape"),
    "no embeddings": (
        change(lambda f: f.tensors.remove(f.tensor("token_embd.weight"))),
        CheckpointError,
        "token_embd",
    ),
    "tokenizer unknown": (
        change(lambda f: f.set("tokenizer.ggml.model", "rwkv")),
        UnsupportedModelError,
        "rwkv",
    ),
    "tokens missing": (change(lambda f: f.drop("tokenizer.ggml.tokens")), TokenizerError, "tokens"),
    "tokens are numbers": (
        change(lambda f: f.set("tokenizer.ggml.tokens", [1, 2])),
        TokenizerError,
        "strings",
    ),
    "types too few": (
        change(lambda f: f.set("tokenizer.ggml.token_type", struct.pack("<IQi", 5, 1, 1), ARRAY)),
        TokenizerError,
        "1 elements for 4 tokens",
    ),
    "EOS past the vocabulary": (
        change(lambda f: f.set("tokenizer.ggml.eos_token_id", 4)),
        TokenizerError,
        "only 4 tokens",
    ),
    "EOS negative": (
        change(lambda f: f.set("tokenizer.ggml.eos_token_id", -5, 11)),
        CheckpointError,
        "eos_token_id",
    ),
    "template of 2 MB": (
        change(lambda f: f.set("tokenizer.chat_template", "x" * (2 << 20))),
        CheckpointError,
        "chat_template",
    ),
    "template is a number": (
        change(lambda f: f.set("tokenizer.chat_template", 1)),
        CheckpointError,
        "chat_template",
    ),
    "template that leaves its directory": (
        change(
            lambda f: f.set("tokenizer.chat_templates", ["../../x"]).set(
                "tokenizer.chat_template.../../x", ""
            )
        ),
        CheckpointError,
        "plain names",
    ),
    "templates are numbers": (
        change(lambda f: f.set("tokenizer.chat_templates", [1])),
        CheckpointError,
        "plain names",
    ),
    "a template that is not there": (
        change(lambda f: f.set("tokenizer.chat_templates", ["tool_use"])),
        CheckpointError,
        "tool_use is missing",
    ),
    "sampling absurd": (
        change(lambda f: f.set("general.sampling.top_p", 7.0)),
        CheckpointError,
        "top_p",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_gives_a_typed_error(case: str, tmp_path: Path) -> None:
    build, kind, words = HOSTILE[case]
    path = tmp_path / "model.gguf"
    path.write_bytes(build())
    text = str(refused_within_limits(lambda: open_gguf(path), kind))
    assert re.search(words, text)
    assert str(tmp_path) not in text
    assert len(text) < 1000


def test_the_file_that_hostile_cases_start_from_is_fine(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(RawGGUF().build())
    model = open_gguf(tmp_path / "m.gguf")
    assert all(read(model, name).isfinite().all() for name in model.weights.tensors)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"m\.gguf"):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    with pytest.raises(CheckpointError, match="regular file"):
        open_gguf(tmp_path / "m.gguf")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").mkdir()
    with pytest.raises(CheckpointError, match="regular file"):
        open_gguf(tmp_path / "m.gguf")


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(RawGGUF().build())
    (tmp_path / "m.gguf").symlink_to(tmp_path / "blob")
    assert open_gguf(tmp_path / "m.gguf").name == "m.gguf"


def test_a_link_in_circles(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").symlink_to(tmp_path / "m.gguf")
    with pytest.raises(ModelNotFoundError):
        open_gguf(tmp_path / "m.gguf")


def test_a_file_that_changes_after_the_check(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(RawGGUF().build())
    model = open_gguf(path)
    path.write_bytes(path.read_bytes()[:-64])
    with pytest.raises(CheckpointError, match="changed"):
        read(model, "model.embed_tokens.weight")


def test_a_wrong_out_tensor_is_the_caller_s_fault(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(RawGGUF().build())
    with pytest.raises(ValueError, match="shape"):
        open_gguf(tmp_path / "m.gguf").weights.read_into("model.norm.weight", torch.empty(3))


VALID = RawGGUF().build()
MUTATION = st.tuples(
    st.integers(0, len(VALID) - 1),
    st.sampled_from(["set", "insert", "delete", "cut", "word"]),
    st.binary(min_size=8, max_size=8),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(MUTATION, min_size=1, max_size=4))
def test_mutated_files_open_or_give_a_typed_error(mutations: list[tuple[int, str, bytes]]) -> None:
    content = bytearray(VALID)
    for place, how, filler in mutations:
        if how == "set":
            content[place : place + 1] = filler[:1]
        elif how == "insert":
            content[place:place] = filler
        elif how == "delete":
            del content[place : place + filler[0]]
        elif how == "word":
            content[place : place + 8] = filler
        else:
            del content[place:]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "m.gguf")
        path.write_bytes(content)
        try:
            model = open_gguf(path)
        except ArtifactError:
            return
        for name in model.weights.tensors:
            read(model, name)


@settings(max_examples=50, deadline=None)
@given(kind=st.sampled_from(sorted(SUPPORTED_TYPES)), seed=st.integers(0, 1 << 32))
def test_any_bytes_dequantise_without_a_warning(kind: Q, seed: int) -> None:
    """Warnings are errors here: a scale that is infinite or NaN must not print anything."""
    weights = random_weights("qwen3", layers=1)
    with tempfile.TemporaryDirectory() as directory:
        path = write_model(Path(directory, "m.gguf"), weights, arch="qwen3", kind=kind)
        header = read_header(path)
        place = header.tensors["token_embd.weight"]
        with path.open("r+b") as file:
            file.seek(place.offset)
            file.write(random.Random(seed).randbytes(place.nbytes))
        assert read(open_gguf(path), "model.embed_tokens.weight").shape == (VOCAB, HIDDEN)


# The real file, against transformers' own reader.


@pytest.mark.weights
def test_smollm2_equals_transformers_reading(smollm2: Path, smollm2_gguf: Path) -> None:
    ours, theirs = open_gguf(smollm2_gguf), open_directory(smollm2)
    assert ours.weights.tensors.keys() == theirs.weights.tensors.keys()
    for name in ours.weights.tensors:
        assert torch.equal(read(ours, name, torch.bfloat16), read(theirs, name, torch.bfloat16)), name
    assert ours.eos_token_ids == theirs.eos_token_ids
    assert ours.chat_templates == theirs.chat_templates


def test_quantised_helper_makes_what_the_library_reads() -> None:
    values = np.ones((2, 256), np.float32)
    for kind in SUPPORTED_TYPES:
        assert gguf.quants.dequantize(quantised(values, kind, np.random.default_rng()), kind).shape == (
            2,
            256,
        )
