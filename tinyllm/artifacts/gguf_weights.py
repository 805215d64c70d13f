"""The weights of a GGUF file, dequantised a slice at a time, with rows in the order of the Hub's models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np
from gguf.quants import dequantize

from tinyllm.artifacts.files import read_at
from tinyllm.artifacts.gguf_config import ROPE_FACTORS, hugging_face_name
from tinyllm.artifacts.gguf_header import GGUFHeader, GGUFTensor
from tinyllm.artifacts.layout import check_against_layout
from tinyllm.artifacts.model import ModelConfig, TensorInfo
from tinyllm.errors import CheckpointError

if TYPE_CHECKING:
    import torch

__all__ = ["GGUFWeights", "read_elements"]

SLICE_ELEMENTS: Final = 1 << 18
"""Dequantised at once: 1 MiB of float32, which stays in a core's cache between the library's passes."""

_ROTARY: Final = re.compile(r"\.self_attn\.[qk]_proj\.")


class GGUFWeights:
    """A `WeightSource` over a GGUF file.

    llama.cpp stores the rows of q and k of the llama architecture so that the two halves of a rotary pair are
    neighbours. Here they are put back to where Hugging Face has them, half a head apart.
    """

    def __init__(self, header: GGUFHeader, config: ModelConfig, *, interleaved: bool) -> None:
        """Check the tensors against the config. Raises `CheckpointError`.

        ``interleaved`` says that q and k rows are neighbours as described above.
        """
        self._file, self._head_dim, self._interleaved = header.file, config.head_dim, interleaved
        self._stored: dict[str, GGUFTensor] = {}
        infos: dict[str, TensorInfo] = {}
        for tensor in header.tensors.values():
            if tensor.name == ROPE_FACTORS:
                continue
            name = hugging_face_name(tensor.name)
            if name is None:
                raise CheckpointError(
                    f"has no place in a {config.architecture}", file=header.file.name, tensor=tensor.name
                )
            self._stored[name] = tensor
            infos[name] = TensorInfo(name, tensor.type.name, tensor.shape, header.file.name, tensor.nbytes)
        self._tensors = check_against_layout(config, infos, header.file.name)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor the model needs, by its Hugging Face name."""
        return self._tensors

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Dequantise tensor ``name`` into ``out``: same shape, any float dtype, any device.

        Holds one slice of a few MB beside it. Raises `CheckpointError` if the file has changed or ends early.
        """
        import torch

        stored = self._stored[name]
        if tuple(out.shape) != stored.shape:
            raise ValueError(f"{name} has shape {stored.shape}, not {tuple(out.shape)}")
        # A unit is what cannot be cut: a whole head where rows change places, else a row or a vector.
        rotary = self._interleaved and _ROTARY.search(name) is not None
        rows = stored.shape[0]
        units = 1 if len(stored.shape) == 1 else rows // self._head_dim if rotary else rows
        size = math.prod(stored.shape) // units
        step = max(1, SLICE_ELEMENTS // size)
        target = out.detach().view(units, size)
        with self._file.open() as file:
            for start in range(0, units, step):
                stop = min(start + step, units)
                values = read_elements(file, stored, start * size, stop * size, self._file.name)
                if rotary:
                    pairs = values.reshape(-1, self._head_dim // 2, 2, math.prod(stored.shape[1:]))
                    values = pairs.swapaxes(1, 2)
                target[start:stop].copy_(torch.from_numpy(values.reshape(stop - start, size)))


def read_elements(
    file: BinaryIO, tensor: GGUFTensor, start: int, stop: int, name: str
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Read and dequantise the elements ``start`` to ``stop``, which must begin and end whole blocks."""
    elements = math.prod(tensor.shape)
    begin, end = start * tensor.nbytes // elements, stop * tensor.nbytes // elements
    content = np.empty((1, end - begin), dtype=np.uint8)
    read_at(file, tensor.offset + begin, memoryview(content[0]), name)
    with np.errstate(all="ignore"):  # a damaged scale becomes inf or nan, which is nothing to warn of here
        # One long row: blocks do not depend on each other, and the library loops over groups of rows.
        values: np.ndarray[Any, np.dtype[np.float32]] = dequantize(content, tensor.type)
    return values.reshape(-1)
