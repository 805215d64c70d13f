"""Writing a checked GGUF model as an ordinary Hugging Face directory, one tensor at a time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tinyllm.artifacts.cache import replace_directory
from tinyllm.artifacts.directory import CONFIG_FILE, GENERATION_CONFIG_FILE
from tinyllm.artifacts.gguf import GGUFModel, read_gguf
from tinyllm.artifacts.model import TensorInfo, TokenizerSource, WeightSource
from tinyllm.artifacts.safetensors import INDEX_FILE, SINGLE_FILE
from tinyllm.artifacts.templates import TEMPLATE_FILE, TEMPLATE_FOLDERS
from tinyllm.errors import ConfigError, UnsupportedModelError

if TYPE_CHECKING:
    import torch

__all__ = ["WriteTokenizer", "convert_gguf", "write_directory", "write_safetensors"]

WriteTokenizer = Callable[[TokenizerSource, Path], None]
"""Writes a tokenizer's files into a directory: the text room's work, which this room does not know."""

SHARD_BYTES: Final = 4 << 30
_NAMES: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def convert_gguf(
    source: Path,
    out: Path,
    *,
    write_tokenizer: WriteTokenizer,
    dtype: str = "auto",
    force: bool = False,
    progress: bool = True,
) -> None:
    """Write the model in GGUF file ``source`` as directory ``out``, which ``transformers`` loads.

    ``dtype`` is ``float32``, ``bfloat16``, ``float16`` or ``auto`` (see `ModelConfig.dtype`). ``out`` appears
    only when it is complete. With ``force`` it may be there already, if it is a model's directory. Memory use
    is one tensor beside the header. Raises an `ArtifactError`, or `ConfigError` for ``out`` or ``dtype``.
    """
    model = read_gguf(source)
    if model.artifacts.tokenizer is None:
        raise UnsupportedModelError(f"{source.name} has no tokenizer, so it cannot become a whole model")
    tokenizer = model.artifacts.tokenizer
    out = out.absolute()
    _check_target(out, force)

    def make(directory: Path) -> None:
        write_directory(model, directory, dtype=dtype, progress=progress)
        write_tokenizer(tokenizer, directory)

    try:
        replace_directory(out, make)
    except OSError as error:
        raise ConfigError(f"{out.name!r} cannot be written: {error.strerror or error}") from None


def _check_target(out: Path, force: bool) -> None:
    if not out.parent.is_dir():
        raise ConfigError(
            f"there is no directory {out.parent.name!r} to write {out.name!r} in; make it first"
        )
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if not force:
        raise ConfigError(f"{out.name!r} is there already; choose another name, or replace it with --force")
    if out.is_symlink() or not (out / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{out.name!r} is not a model's directory, so it is not replaced; choose another name"
        )


def write_directory(model: GGUFModel, out: Path, *, dtype: str = "auto", progress: bool = True) -> None:
    """Write everything but the tokenizer into the empty directory ``out``."""
    artifacts = model.artifacts
    dtype = artifacts.config.dtype if dtype == "auto" else dtype
    if dtype not in _NAMES:
        raise ConfigError(f"dtype must be auto, {', '.join(_NAMES)} (got {dtype!r})")
    write_safetensors(artifacts.weights, out, dtype=dtype, progress=progress)
    _write_json(out / CONFIG_FILE, {**model.config_json, "torch_dtype": dtype})
    _write_json(out / GENERATION_CONFIG_FILE, model.generation_config)
    for name, template in artifacts.chat_templates.items():
        file = out / TEMPLATE_FILE if name == "default" else out / TEMPLATE_FOLDERS[0] / f"{name}.jinja"
        file.parent.mkdir(exist_ok=True)
        file.write_text(template, encoding="utf-8")


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_safetensors(
    weights: WeightSource,
    out: Path,
    *,
    dtype: str,
    progress: bool = True,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write ``weights`` into directory ``out`` as one safetensors file, or as shards with an index.

    Memory use is one tensor. (The safetensors library wants all tensors of a file at once.)
    """
    import torch
    from tqdm.auto import tqdm

    torch_dtype: torch.dtype = getattr(torch, dtype)
    shards = _split(weights.tensors, torch_dtype.itemsize, shard_bytes)
    names = [
        SINGLE_FILE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        for number in range(1, len(shards) + 1)
    ]
    total = sum(_size(info, torch_dtype.itemsize) for info in weights.tensors.values())
    with tqdm(
        total=total, unit="B", unit_scale=True, desc="Converting", disable=None if progress else True
    ) as bar:
        for name, shard in zip(names, shards, strict=True):
            with (out / name).open("wb") as file:
                file.write(_header(shard, dtype, torch_dtype.itemsize))
                for info in shard:
                    tensor = torch.empty(info.shape, dtype=torch_dtype)
                    weights.read_into(info.name, tensor)
                    file.write(tensor.view(-1).view(torch.uint8).numpy().data)
                    bar.update(tensor.nbytes)
                file.flush()
                os.fsync(file.fileno())
    if len(shards) > 1:
        weight_map = {info.name: name for name, shard in zip(names, shards, strict=True) for info in shard}
        _write_json(out / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _split(tensors: Mapping[str, TensorInfo], itemsize: int, limit: int) -> list[list[TensorInfo]]:
    """Fill shards up to ``limit`` bytes, in order; a tensor larger than that has a shard of its own."""
    shards: list[list[TensorInfo]] = [[]]
    used = 0
    for info in tensors.values():
        size = _size(info, itemsize)
        if shards[-1] and used + size > limit:
            shards.append([])
            used = 0
        shards[-1].append(info)
        used += size
    return shards


def _header(shard: list[TensorInfo], dtype: str, itemsize: int) -> bytes:
    """Return a safetensors header: its length in 8 bytes, then JSON, padded so that data are aligned."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for info, begin in zip(shard, _offsets(shard, itemsize), strict=True):
        offsets = [begin, begin + _size(info, itemsize)]
        entries[info.name] = {"dtype": _NAMES[dtype], "shape": list(info.shape), "data_offsets": offsets}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _offsets(shard: list[TensorInfo], itemsize: int) -> Iterator[int]:
    offset = 0
    for info in shard:
        yield offset
        offset += _size(info, itemsize)


def _size(info: TensorInfo, itemsize: int) -> int:
    return math.prod(info.shape) * itemsize
