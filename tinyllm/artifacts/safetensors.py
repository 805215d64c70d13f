"""Safetensors files: the header checked in full before anything is allocated, then tensors read in slices.

A file is 8 bytes (the header's length, little-endian), the header (JSON: name -> dtype, shape, offsets) and
the tensors' bytes, without gaps. It is read with ordinary reads, not through a memory map: mapped pages would
count as this process's memory beside the tensors they are copied into.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tinyllm.artifacts.files import CheckedFile, ModelDirectory, read_at
from tinyllm.artifacts.json_file import MAX_JSON_BYTES, Fields, parse_object, shorten
from tinyllm.artifacts.layout import check_against_layout
from tinyllm.artifacts.model import ModelConfig, TensorInfo
from tinyllm.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    import torch

__all__ = ["INDEX_FILE", "SINGLE_FILE", "Checkpoint", "SafetensorsWeights", "parse_header", "read_checkpoint"]

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"

_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""The format's dtypes, and their sizes in bits."""

_WEIGHT_DTYPES: Final = ("F32", "BF16", "F16", "F64")
_MAX_DIMENSIONS: Final = 8
_SLICE_BYTES: Final = 4 << 20
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor and where its bytes are."""

    info: TensorInfo
    file: CheckedFile
    offset: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a directory's safetensors files, as their checked headers describe them."""

    main_file: str
    """The single file, or the index."""
    stored: Mapping[str, _Stored]
    digest: str
    """SHA-256 over the headers and their files' names."""

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Every tensor by name."""
        return {name: stored.info for name, stored in self.stored.items()}


class SafetensorsWeights:
    """A `WeightSource` over safetensors files."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        """Check the tensors against the config. Raises `CheckpointError` or `UnsupportedModelError`."""
        self._stored = checkpoint.stored
        self._tensors = check_against_layout(config, checkpoint.tensors, checkpoint.main_file)
        for name, info in self._tensors.items():
            if info.dtype not in _WEIGHT_DTYPES:
                raise UnsupportedModelError(
                    f"{info.file}, tensor {shorten(name)}: weights stored as {info.dtype} are not supported; "
                    "use the original model or a GGUF file of it"
                )

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor the model needs, by name."""
        return self._tensors

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Read tensor ``name`` into ``out``: same shape, any float dtype, any device.

        Holds one slice of a few MB beside it. Raises `CheckpointError` if the file has changed or ends early.
        """
        import torch

        stored = self._stored[name]
        if tuple(out.shape) != stored.info.shape:
            raise ValueError(f"{name} has shape {stored.info.shape}, not {tuple(out.shape)}")
        dtypes = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64}
        dtype = dtypes[stored.info.dtype]
        rows = out.detach()
        if rows.is_contiguous():
            rows = rows.view(-1)
        row_bytes = math.prod(rows.shape[1:]) * dtype.itemsize
        step = max(1, _SLICE_BYTES // row_bytes)
        buffer = bytearray(min(step, len(rows)) * row_bytes)
        with stored.file.open() as file:
            for start in range(0, len(rows), step):
                target = rows[start : start + step]
                view = memoryview(buffer)[: len(target) * row_bytes]
                read_at(file, stored.offset + start * row_bytes, view, stored.file.name)
                target.copy_(torch.frombuffer(view, dtype=dtype).view(target.shape))


def read_checkpoint(directory: ModelDirectory) -> Checkpoint | None:
    """Read and check the headers of the directory's safetensors files; None if there are none.

    Raises `CheckpointError` for anything that is damaged, missing or more than the index says.
    """
    if single := directory.find(SINGLE_FILE):
        stored, digest = _read_header(single)
        return Checkpoint(SINGLE_FILE, stored, hashlib.sha256(digest).hexdigest())
    if index := directory.find(INDEX_FILE):
        return _read_shards(directory, index)
    shards = [name for name in directory.names() if name.endswith(".safetensors")]
    if any(_SHARD.fullmatch(name) for name in shards):
        raise CheckpointError(
            f"is missing, but there are shards such as {shorten(shards[0])}; fetch it too", file=INDEX_FILE
        )
    return None


def parse_header(header: bytes, data_size: int, file: str) -> dict[str, tuple[TensorInfo, int]]:
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
            raise CheckpointError(what, file=file, tensor=_cut(info.name))
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
    tensor = _cut(name)
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


def _cut(name: str) -> str:
    """Keep a message readable when a hostile name is megabytes long."""
    return name if len(name) <= 100 else name[:97] + "..."


def _read_header(file: CheckedFile) -> tuple[dict[str, _Stored], bytes]:
    """Return the file's tensors and the header's digest."""
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
    tensors = parse_header(bytes(header), file.size - data, file.name)
    stored = {name: _Stored(info, file, data + offset) for name, (info, offset) in tensors.items()}
    return stored, hashlib.sha256(header).digest()


def _read_shards(directory: ModelDirectory, index: CheckedFile) -> Checkpoint:
    weight_map = _read_index(index)
    names = sorted(set(weight_map.values()))
    files = {name: directory.find(name) for name in names}
    missing = [name for name, file in files.items() if file is None]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} shards are missing, such as {missing[0]}; fetch them too",
            file=INDEX_FILE,
        )
    _refuse_other_shards(directory, names)

    stored: dict[str, _Stored] = {}
    digest = hashlib.sha256()
    for file in files.values():
        if file is None:
            continue
        tensors, header_digest = _read_header(file)
        digest.update(file.name.encode() + b"\0" + header_digest)
        for name in tensors:
            if weight_map.get(name) != file.name:
                place = "another shard" if name in weight_map else "no shard"
                raise CheckpointError(
                    f"the index says that {place} has it", file=file.name, tensor=_cut(name)
                )
        stored |= tensors
    for name, shard in weight_map.items():
        if name not in stored:
            raise CheckpointError(f"{shard} does not have it", file=INDEX_FILE, tensor=_cut(name))
    return Checkpoint(INDEX_FILE, stored, digest.hexdigest())


def _read_index(index: CheckedFile) -> dict[str, str]:
    """Return the shard of each tensor. Shard names are plain file names."""
    weight_map = Fields(parse_object(index.read(MAX_JSON_BYTES), INDEX_FILE), INDEX_FILE).mapping(
        "weight_map"
    )
    if not weight_map:
        raise CheckpointError("weight_map is empty", file=INDEX_FILE)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not re.fullmatch(r"\w[\w.-]{0,200}\.safetensors", shard, re.ASCII):
            raise CheckpointError(
                f"{shorten(shard)} is not the name of a shard: a plain file name ending in .safetensors",
                file=INDEX_FILE,
                tensor=_cut(name),
            )
    return weight_map


def _refuse_other_shards(directory: ModelDirectory, names: list[str]) -> None:
    """A shard of the same series that the index does not name: two checkpoints are mixed up."""
    series = {match[1] for name in names if (match := _SHARD.fullmatch(name))}
    for name in directory.names():
        match = _SHARD.fullmatch(name)
        if match and match[1] in series and name not in names:
            raise CheckpointError(
                "is not in the index; files of two checkpoints are mixed, or the index is old", file=name
            )
