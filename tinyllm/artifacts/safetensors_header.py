"""The header of a safetensors file, checked in full before anything is allocated.

A file is 8 bytes (the header's length, little-endian), the header (JSON: name -> dtype, shape, offsets) and
the tensors' bytes, without gaps.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Final

from tinyllm.artifacts.files import CheckedFile, read_at
from tinyllm.artifacts.json_file import MAX_JSON_BYTES, parse_object, shorten
from tinyllm.artifacts.model import TensorInfo
from tinyllm.errors import CheckpointError

__all__ = ["StoredTensor", "cut", "parse_header", "read_header"]

_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""The format's dtypes, and their sizes in bits."""

_MAX_DIMENSIONS: Final = 8


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor and where its bytes are."""

    info: TensorInfo
    file: CheckedFile
    offset: int


def read_header(file: CheckedFile) -> tuple[dict[str, StoredTensor], bytes]:
    """Return the file's tensors, and the header's SHA-256. Raises `CheckpointError`."""
    if file.size < 8:
        raise CheckpointError(f"has {file.size} bytes, too few for a safetensors file", file=file.name)
    with file.open() as opened:
        prefix = bytearray(8)
        read_at(opened, 0, memoryview(prefix), file.name)
        length = int.from_bytes(prefix, "little")
        if length > MAX_JSON_BYTES:
            raise CheckpointError(
                f"its header would have {length:,} bytes, over the limit of {MAX_JSON_BYTES:,}; "
                "this is not a safetensors file, or it is damaged",
                file=file.name,
            )
        if 8 + length > file.size:
            raise CheckpointError(
                f"its header has {length:,} bytes, but the file only {file.size:,}; it was cut short: "
                "fetch it again",
                file=file.name,
            )
        header = bytearray(length)
        read_at(opened, 8, memoryview(header), file.name)
    data = 8 + length
    tensors = parse_header(header, file.size - data, file.name)
    stored = {name: StoredTensor(info, file, data + offset) for name, (info, offset) in tensors.items()}
    return stored, hashlib.sha256(header).digest()


def parse_header(header: bytes | bytearray, data_size: int, file: str) -> dict[str, tuple[TensorInfo, int]]:
    """Check a header against the ``data_size`` bytes that follow it.

    Returns each tensor with its offset in the data. Raises `CheckpointError`.
    """
    entries = parse_object(header, file)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CheckpointError("__metadata__ must be an object of strings", file=file)

    tensors = {name: _parse_entry(name, entry, file) for name, entry in entries.items()}
    end = 0
    for info, offset in sorted(tensors.values(), key=lambda tensor: (tensor[1], tensor[0].nbytes)):
        if offset != end:
            what = "overlaps the one before it" if offset < end else f"leaves a gap of {offset - end:,} bytes"
            raise CheckpointError(what, file=file, tensor=cut(info.name))
        end = offset + info.nbytes
    if end > data_size:
        raise CheckpointError(
            f"the header describes {end:,} bytes of tensors, but the file has only {data_size:,}; it was cut "
            "short: fetch it again",
            file=file,
        )
    if end < data_size:
        raise CheckpointError(f"has {data_size - end:,} bytes that belong to no tensor", file=file)
    return tensors


def _parse_entry(name: str, entry: Any, file: str) -> tuple[TensorInfo, int]:
    tensor = cut(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError("must have dtype, shape and data_offsets", file=file, tensor=tensor)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise CheckpointError(f"has the unknown dtype {shorten(dtype)}", file=file, tensor=tensor)
    if not _are_sizes(shape) or len(shape) > _MAX_DIMENSIONS:
        raise CheckpointError(
            f"shape must be at most {_MAX_DIMENSIONS} sizes from 0 up", file=file, tensor=tensor
        )
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError("data_offsets must be a begin and an end", file=file, tensor=tensor)
    nbytes = offsets[1] - offsets[0]
    bits = math.prod(shape) * _BITS[dtype]
    if bits != nbytes * 8:
        raise CheckpointError(
            f"{dtype} {shape} takes {shorten((bits + 7) // 8)} bytes, but its data_offsets span {nbytes}",
            file=file,
            tensor=tensor,
        )
    return TensorInfo(name, dtype, tuple(shape), file, nbytes), offsets[0]


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def cut(name: str) -> str:
    """Keep a message readable when a hostile name is megabytes long."""
    return name if len(name) <= 100 else name[:97] + "..."
