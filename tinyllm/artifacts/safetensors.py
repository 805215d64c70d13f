"""A directory's safetensors files, single or sharded, as a source of weights.

Tensors are read with ordinary reads, not through a memory map: mapped pages would count as this process's
memory beside the tensors they are copied into.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tinyllm.artifacts.files import CheckedFile, ModelDirectory, read_at
from tinyllm.artifacts.json_file import MAX_JSON_BYTES, Fields, parse_object, shorten
from tinyllm.artifacts.layout import check_against_layout
from tinyllm.artifacts.model import ModelConfig, TensorInfo
from tinyllm.artifacts.safetensors_header import StoredTensor, cut, read_header
from tinyllm.errors import CheckpointError, UnsupportedModelError

if TYPE_CHECKING:
    import torch

__all__ = ["INDEX_FILE", "SINGLE_FILE", "Checkpoint", "SafetensorsWeights", "read_checkpoint"]

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"

_WEIGHT_DTYPES: Final = ("F32", "BF16", "F16", "F64")
_SLICE_BYTES: Final = 4 << 20
_SHARD: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All tensors of a directory's safetensors files, as their checked headers describe them."""

    main_file: str
    """The single file, or the index."""
    stored: Mapping[str, StoredTensor]
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
        stored, digest = read_header(single)
        return Checkpoint(SINGLE_FILE, stored, hashlib.sha256(digest).hexdigest())
    if index := directory.find(INDEX_FILE):
        return _read_shards(directory, index)
    shards = [name for name in directory.names() if name.endswith(".safetensors")]
    if any(_SHARD.fullmatch(name) for name in shards):
        raise CheckpointError(
            f"is missing, but there are shards such as {shorten(shards[0])}; fetch it too", file=INDEX_FILE
        )
    return None


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

    stored: dict[str, StoredTensor] = {}
    digest = hashlib.sha256()
    for file in files.values():
        if file is None:
            continue
        tensors, header_digest = read_header(file)
        digest.update(file.name.encode() + b"\0" + header_digest)
        for name in tensors:
            if weight_map.get(name) != file.name:
                place = "another shard" if name in weight_map else "no shard"
                raise CheckpointError(f"the index says that {place} has it", file=file.name, tensor=cut(name))
        stored |= tensors
    for name, shard in weight_map.items():
        if name not in stored:
            raise CheckpointError(f"{shard} does not have it", file=INDEX_FILE, tensor=cut(name))
    return Checkpoint(INDEX_FILE, stored, digest.hexdigest())


def _read_index(index: CheckedFile) -> dict[str, str]:
    """Return the shard of each tensor. Shard names are plain file names."""
    fields = Fields(parse_object(index.read(MAX_JSON_BYTES), INDEX_FILE), INDEX_FILE)
    weight_map = fields.mapping("weight_map")
    if not weight_map:
        raise CheckpointError("weight_map is empty", file=INDEX_FILE)
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not re.fullmatch(r"\w[\w.-]{0,200}\.safetensors", shard, re.ASCII):
            raise CheckpointError(
                f"{shorten(shard)} is not the name of a shard: a plain file name ending in .safetensors",
                file=INDEX_FILE,
                tensor=cut(name),
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
