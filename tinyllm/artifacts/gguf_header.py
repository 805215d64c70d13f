"""The header of a GGUF file: metadata and where each tensor lies, with every number checked.

The ``gguf`` library's reader trusts the file (it raises untyped errors, loops over any count, and takes
seconds for a large vocabulary), so this file reads the header itself and leaves to the library what it
knows best: the tensor types, their block sizes, and how to dequantise them.

Layout (version 2 and 3, little-endian): magic, version, tensor count, key count, the key/value pairs, the
tensor descriptions, padding to ``general.alignment``, the tensors' data.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tinyllm.artifacts.files import MIB, CheckedFile, ModelDirectory, read_at
from tinyllm.artifacts.json_file import Fields, shorten
from tinyllm.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

__all__ = [
    "SUPPORTED_TYPES",
    "GGUFHeader",
    "GGUFTensor",
    "read_header",
    "write_vocabulary_only",
]

SUPPORTED_TYPES: Final = frozenset(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
)

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
COUNTS_END: Final = 24
"""Where the key/value pairs start: after magic, version and the two counts."""

# Real files stay far below these: Qwen3's header has 6 MB, 450,000 array elements, 30 keys, 311 tensors.
MAX_HEADER_BYTES: Final = 64 * MIB
MAX_ARRAY_ELEMENTS: Final = 2_000_000
MAX_KEYS: Final = 4096
MAX_TENSORS: Final = 65_536
MAX_KEY_BYTES: Final = 65_535
MAX_TENSOR_NAME_BYTES: Final = 64
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = MIB

FLOAT32: Final = 6
STRING: Final = 8
ARRAY: Final = 9
SCALARS: Final[Mapping[int, str]] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    FLOAT32: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""GGUF value type -> struct format."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies: ``shape`` as PyTorch has it, ``offset`` in bytes from the file's start."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """A checked header. ``digest`` is the SHA-256 (hex) of its bytes, up to the data."""

    file: CheckedFile
    metadata: Fields
    """Values by key; arrays are lists."""
    tensors: Mapping[str, GGUFTensor]
    metadata_end: int
    digest: str


def read_header(path: Path) -> GGUFHeader:
    """Read and check the header of the GGUF file ``path``.

    Raises `CheckpointError` when it is damaged, `UnsupportedModelError` for a version, byte order or tensor
    type that is not read here, `ModelNotFoundError` when there is no such file.
    """
    checked = _find(path)
    with checked.open() as raw:
        cursor = _Cursor(io.BufferedReader(cast("io.RawIOBase", raw), buffer_size=256 << 10), checked)
        tensor_count, key_count = _read_preamble(cursor)
        metadata = Fields(_read_pairs(cursor, key_count), checked.name)
        metadata_end = cursor.position
        tensors = _place_tensors(_read_descriptions(cursor, tensor_count), metadata, cursor)
        content = bytearray(cursor.position)
        read_at(raw, 0, memoryview(content), checked.name)
    return GGUFHeader(checked, metadata, tensors, metadata_end, hashlib.sha256(content).hexdigest())


def write_vocabulary_only(header: GGUFHeader, out: Path) -> None:
    """Write the metadata as a GGUF file without tensors (what llama.cpp calls vocabulary only)."""
    content = bytearray(header.metadata_end)
    with header.file.open() as file:
        read_at(file, 0, memoryview(content), header.file.name)
    content[8:16] = bytes(8)  # the tensor count
    out.write_bytes(content)


def _find(path: Path) -> CheckedFile:
    """Check that ``path`` is a regular file. Links are followed: the user named this very file."""
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise ModelNotFoundError(f"there is no file {path.name}") from None
    file = ModelDirectory(resolved.parent).find(resolved.name)
    if file is None:
        raise ModelNotFoundError(f"there is no file {path.name}")
    return replace(file, name=path.name)


class _Cursor:
    """Reads the header from its start; refuses to pass its limit before anything is allocated."""

    def __init__(self, stream: io.BufferedReader, file: CheckedFile) -> None:
        self._stream = stream
        self._limit = min(file.size, MAX_HEADER_BYTES)
        self._elements = 0
        self.file = file
        self.position = 0

    def fault(self, message: str, tensor: str | None = None) -> CheckpointError:
        return CheckpointError(message, file=self.file.name, tensor=tensor)

    def take(self, count: int) -> bytes:
        if count > self._limit - self.position:
            if self._limit == MAX_HEADER_BYTES:
                raise self.fault(f"has a header of more than {MAX_HEADER_BYTES:,} bytes")
            raise self.fault("its header reaches past its end; it was cut short or is damaged")
        data = self._stream.read(count)
        if len(data) != count:
            raise self.fault("changed while it was read")
        self.position += count
        return data

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        data = self.take(int.from_bytes(self.take(8), "little"))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fault("a string in its header is not UTF-8") from None

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self._array(key)
        if kind not in SCALARS:
            raise self.fault(f"metadata key {shorten(key)} has unknown type {kind}")
        value = self.scalar(SCALARS[kind])
        return _shortest(value) if kind == FLOAT32 else value

    def _array(self, key: str) -> list[Any]:
        kind, count = self.scalar("I"), self.scalar("Q")
        self._elements += count
        if self._elements > MAX_ARRAY_ELEMENTS:
            raise self.fault(f"its metadata arrays have more than {MAX_ARRAY_ELEMENTS:,} elements")
        if kind == STRING:
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise self.fault(f"metadata key {shorten(key)} is an array of unknown type {kind}")
        layout = f"<{count}{SCALARS[kind]}"
        return list(struct.unpack(layout, self.take(struct.calcsize(layout))))


def _shortest(value: float) -> float:
    """Return the shortest decimal that rounds to the float32 ``value``: 1e-05 for 9.999999747378752e-06.

    That is the number which the model's ``config.json`` had, before GGUF stored it in 32 bits.
    """
    return float(str(np.float32(value)))


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    """Return the tensor count and the key count."""
    if cursor.take(4) != MAGIC:
        raise cursor.fault("not a GGUF file (wrong magic)")
    version = cursor.scalar("I")
    if version & 0xFFFF == 0 and version != 0:
        raise UnsupportedModelError("big-endian GGUF files are not supported; convert it to little-endian")
    if version not in VERSIONS:
        raise UnsupportedModelError(f"GGUF version {version} is not supported; versions 2 and 3 are")
    tensors, keys = cursor.scalar("Q"), cursor.scalar("Q")
    if tensors > MAX_TENSORS:
        raise cursor.fault(f"{tensors} tensors are more than any model has (limit {MAX_TENSORS})")
    if keys > MAX_KEYS:
        raise cursor.fault(f"{keys} metadata keys are more than any model has (limit {MAX_KEYS})")
    return tensors, keys


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string()
        if len(key) > MAX_KEY_BYTES:
            raise cursor.fault(f"a metadata key is longer than {MAX_KEY_BYTES} bytes")
        if key in values:
            raise cursor.fault(f"metadata key {key!r} appears twice")
        values[key] = cursor.value(cursor.scalar("I"), key)
    return values


def _read_descriptions(cursor: _Cursor, count: int) -> list[GGUFTensor]:
    """Read the tensor descriptions. Their ``offset`` still counts from the start of the data."""
    tensors: list[GGUFTensor] = []
    for _ in range(count):
        name = cursor.string()
        if len(name.encode()) > MAX_TENSOR_NAME_BYTES:
            raise cursor.fault(f"a tensor's name is longer than {MAX_TENSOR_NAME_BYTES} bytes")
        dimensions = cursor.scalar("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise cursor.fault(f"has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible", name)
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))[::-1]
        if not all(shape):
            raise cursor.fault(f"is empty: its shape is {list(shape)}", name)
        kind = _tensor_type(cursor, name)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise cursor.fault(
                f"has rows of {shape[-1]}, which are not whole {kind.name} blocks of {block}", name
            )
        nbytes = math.prod(shape) // block * block_bytes
        tensors.append(GGUFTensor(name, kind, shape, cursor.scalar("Q"), nbytes))
    return tensors


def _tensor_type(cursor: _Cursor, tensor: str) -> GGMLQuantizationType:
    number = cursor.scalar("I")
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise cursor.fault(f"has unknown type {number}", tensor) from None
    if kind not in SUPPORTED_TYPES:
        supported = ", ".join(sorted(kind.name for kind in SUPPORTED_TYPES))
        raise UnsupportedModelError(
            f"{cursor.file.name}: tensor {tensor!r} is stored as {kind.name}, which tinyllm does not read; "
            f"use a file with {supported}"
        )
    return kind


def _place_tensors(described: list[GGUFTensor], metadata: Fields, cursor: _Cursor) -> dict[str, GGUFTensor]:
    """Check offsets and sizes against the file, and make the offsets absolute."""
    alignment = metadata.integer("general.alignment", 32, maximum=MAX_ALIGNMENT)
    if alignment & (alignment - 1):
        raise metadata.fault("general.alignment", f"must be a power of two, not {alignment}")
    start = end = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for tensor in sorted(described, key=lambda tensor: tensor.offset):
        if tensor.name in tensors:
            raise cursor.fault("is there twice", tensor.name)
        if tensor.offset % alignment:
            raise cursor.fault(f"is not aligned to {alignment} bytes", tensor.name)
        if start + tensor.offset < end:
            raise cursor.fault("overlaps another tensor", tensor.name)
        end = start + tensor.offset + tensor.nbytes
        if end > cursor.file.size:
            raise cursor.fault(
                f"would end at byte {end:,}, but the file has {cursor.file.size:,}; "
                "it was cut short: fetch it again",
                tensor.name,
            )
        tensors[tensor.name] = replace(tensor, offset=start + tensor.offset)
    return tensors
