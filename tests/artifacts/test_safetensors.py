from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file

from tests.artifacts.small import CONFIG, SINGLE, write_model
from tinyllm.artifacts import safetensors as module
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.safetensors_header import parse_header
from tinyllm.errors import CheckpointError

VALID = save({"a": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.float16), "c": torch.zeros(0, 4)})
HEADER_END = 8 + int.from_bytes(VALID[:8], "little")
HEADER = VALID[8:HEADER_END]
DATA_SIZE = len(VALID) - HEADER_END


def test_header_of_a_good_file() -> None:
    tensors = parse_header(HEADER, DATA_SIZE, "a.safetensors")
    assert {name: (info.dtype, info.shape, info.nbytes) for name, (info, _) in tensors.items()} == {
        "a": ("F32", (2, 3), 24),
        "b": ("F16", (5,), 10),
        "c": ("F32", (0, 4), 0),
    }


def test_packed_dtypes_are_counted_in_bits() -> None:
    header = {"a": {"dtype": "F4", "shape": [3, 2], "data_offsets": [0, 3]}}
    assert parse_header(json.dumps(header).encode(), 3, "f")["a"][0].nbytes == 3
    header["a"]["shape"] = [5]
    with pytest.raises(CheckpointError, match="takes 3 bytes"):
        parse_header(json.dumps(header).encode(), 2, "f")


def check(header: bytes, data_size: int) -> None:
    """A header is either refused, or describes every byte exactly once."""
    try:
        tensors = parse_header(header, data_size, "f")
    except CheckpointError as error:
        assert len(str(error)) < 400  # noqa: PT017
        return
    assert sum(info.nbytes for info, _ in tensors.values()) == data_size
    for info, offset in tensors.values():
        assert 0 <= offset <= offset + info.nbytes <= data_size
        assert all(size >= 0 for size in info.shape)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 2**64))
def test_any_bytes_as_a_header(header: bytes, data_size: int) -> None:
    check(header, data_size)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(HEADER)), st.integers(0, 12), st.binary(max_size=12), st.integers(-1, 1))
def test_a_header_with_a_piece_replaced(at: int, cut: int, noise: bytes, more: int) -> None:
    check(HEADER[:at] + noise + HEADER[at + cut :], DATA_SIZE + more)


SIZES = st.integers(-1, 6) | st.integers() | st.booleans() | st.none() | st.floats()
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BF16", "U8", "BOOL", "F4", "f32", None]),
        "shape": st.lists(SIZES, max_size=3),
        "data_offsets": st.lists(SIZES, min_size=1, max_size=3),
    }
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=3), ENTRIES, max_size=3), st.integers(0, 32))
def test_a_header_of_any_entries(entries: dict[str, Any], data_size: int) -> None:
    check(json.dumps(entries).encode(), data_size)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16, torch.float16])
def test_read_into_is_what_the_safetensors_library_reads(
    tmp_path: Path, stored: torch.dtype, wanted: torch.dtype, sharded: bool
) -> None:
    model = write_model(tmp_path / "model", sharded=sharded)
    files = list(model.glob("*.safetensors"))
    for file in files:
        save_file({name: tensor.to(stored) for name, tensor in load_file(file).items()}, file)
    weights = open_directory(model).weights
    expected = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for name, info in weights.tensors.items():
        out = torch.empty(info.shape, dtype=wanted)
        weights.read_into(name, out)
        assert torch.equal(out, expected[name].to(wanted))


@pytest.mark.parametrize("slice_bytes", [1, 4, 60, 100, 1 << 20])
def test_read_into_a_part_of_a_larger_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(module, "_SLICE_BYTES", slice_bytes)
    model = write_model(tmp_path / "model")
    weights = open_directory(model).weights
    name = "model.layers.0.mlp.down_proj.weight"
    expected = load_file(model / SINGLE)[name]
    rows, columns = expected.shape

    stacked = torch.zeros(rows + 2, columns)
    weights.read_into(name, stacked[1:-1])
    assert torch.equal(stacked[1:-1], expected)
    assert not stacked[0].any()
    assert not stacked[-1].any()

    turned = torch.zeros(columns, rows)
    weights.read_into(name, turned.T)
    assert torch.equal(turned, expected.T)

    parameter = torch.nn.Parameter(torch.zeros(rows, columns))
    weights.read_into(name, parameter)
    assert torch.equal(parameter, expected)


def test_read_into_another_shape_is_a_fault_of_the_caller(tmp_path: Path) -> None:
    weights = open_directory(write_model(tmp_path / "model")).weights
    with pytest.raises(ValueError, match="has shape"):
        weights.read_into("model.norm.weight", torch.zeros(17))


def test_a_file_that_changed_after_the_check_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    weights = open_directory(model).weights
    os.truncate(model / SINGLE, 1000)
    with pytest.raises(CheckpointError, match=f"^{SINGLE}: changed while it was in use"):
        weights.read_into("model.norm.weight", torch.zeros(16))
    (model / SINGLE).unlink()
    with pytest.raises(CheckpointError, match="cannot be opened"):
        weights.read_into("model.norm.weight", torch.zeros(16))


def test_fingerprint_follows_config_and_headers(tmp_path: Path) -> None:
    def fingerprint(name: str, **changes: Any) -> str:
        return open_directory(write_model(tmp_path / name, CONFIG | changes)).fingerprint

    first = fingerprint("a")
    assert len(first) == 64
    assert fingerprint("b") == first
    assert fingerprint("c", rope_theta=20000.0) != first
    assert fingerprint("d", intermediate_size=32) != first


PEAK_SCRIPT = """
import sys, torch
from pathlib import Path
from tinyllm.artifacts.directory import open_directory

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

torch.set_num_threads(1)
dtype = getattr(torch, sys.argv[2])
Path("/proc/self/clear_refs").write_text("5")  # forgets the peak of the imports
before = peak()
weights = open_directory(Path(sys.argv[1])).weights
loaded = {}
for name, info in weights.tensors.items():
    loaded[name] = torch.empty(info.shape, dtype=dtype)
    weights.read_into(name, loaded[name])
print(peak() - before, sum(tensor.nbytes for tensor in loaded.values()))
"""


def extra_memory(model: Path, dtype: str) -> tuple[int, int]:
    """Load a model in a process of its own; return how far its peak rose, and the weights' size."""
    result = subprocess.run(
        [sys.executable, "-c", PEAK_SCRIPT, str(model), dtype], capture_output=True, text=True, check=True
    )
    rise, size = map(int, result.stdout.split())
    return rise, size


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_holds_no_second_copy(tmp_path: Path, dtype: str) -> None:
    config = CONFIG | {"vocab_size": 1 << 18, "hidden_size": 64, "num_attention_heads": 4}
    model = write_model(tmp_path / "model", config)
    rise, size = extra_memory(model, dtype)
    assert size > math.prod((1 << 18, 64)) * 2
    assert rise < size + (24 << 20)


@pytest.mark.weights
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_smollm2_holds_no_second_copy(smollm2: Path, dtype: str) -> None:
    rise, size = extra_memory(smollm2, dtype)
    assert rise < size + (32 << 20)
