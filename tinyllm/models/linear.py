"""`Linear`: every matrix product with weights, fused from parts, and independent from row to row.

On the CPU, in float32 and bfloat16, the weight is packed once, and no other copy is kept. A row's result then
does not depend on how many other rows there are, bit for bit. Three ways, the first that works here:

* by blocks of columns, through the C kernels (``native/products.c``), which call oneDNN for each;
* packed by PyTorch into oneDNN's own layout: 1.5 to 4 times faster than the last way, and slower than the
  first by what it takes to find and allocate things for each product. A single row takes another kernel, so
  it is computed twice. The packing operators are private to PyTorch (its compiler uses them), so they are
  named in this file only and their existence is checked;
* elsewhere `torch.nn.functional.linear`, which promises no such independence.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional as F

from tinyllm.models.onednn import OneDNN
from tinyllm.models.weights import WeightReader
from tinyllm.native.library import NativeUnavailableError, load_library

__all__ = ["Linear", "LinearArgs", "can_pack"]

BLOCK: Final = 48
"""Columns of a block."""

_mkldnn: Any = torch.ops.mkldnn


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether weights of this dtype can be packed, and so whether rows are independent of each other."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not all(hasattr(_mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")):
        return False
    if dtype == torch.bfloat16:
        return hasattr(_mkldnn, "_is_mkldnn_bf16_supported") and bool(_mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class LinearArgs(ctypes.Structure):
    """``linear`` of ``native/kernels.h``."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
    )


class Linear(nn.Module):
    """``x @ weight.T + bias`` on ``[num_tokens, in_features]``.

    ``parts`` names the checkpoint's tensors that are stacked into the one weight, such as ``q_proj``,
    ``k_proj``, ``v_proj``. The weight takes no memory before `load`.
    """

    weight: torch.Tensor
    """``[out_features, in_features]``, or its packed form."""
    bias: torch.Tensor | None
    """``[out_features]``"""
    onednn: OneDNN | None
    """What multiplies by blocks, where that is the way."""

    def __init__(self, *parts: str, bias: bool = False) -> None:
        super().__init__()
        self.parts = parts
        self.has_bias = bias
        self.bias = None

    def load(self, path: str, reader: WeightReader) -> None:
        """Read every part, pack, and free the unpacked form. ``path`` is this layer's name in the model."""
        parent = path.rpartition(".")[0]
        if self.has_bias:
            self.bias = reader.read(*(f"{parent}.{part}.bias".lstrip(".") for part in self.parts))
        self.set_weight(reader.read(*(f"{parent}.{part}.weight".lstrip(".") for part in self.parts)))

    def set_weight(self, weight: torch.Tensor) -> None:
        """Use ``weight [out_features, in_features]``: a packed copy of it where possible, else itself."""
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self.is_packed = can_pack(weight.dtype, weight.device)
        self.onednn = _onednn_for(weight) if self.is_packed else None
        if self.onednn is not None:
            self.weight = _by_blocks(weight)
        elif self.is_packed:  # None: packed for no particular number of rows.
            self.weight = _mkldnn._reorder_linear_weight(weight, None)
        else:
            self.weight = weight

    def args(self) -> LinearArgs:
        """Return what C code multiplies by, where it can: pointers into this layer's memory."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return LinearArgs(self.weight.data_ptr(), bias, self.in_features, self.out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[num_tokens, in_features]`` to ``[num_tokens, out_features]``."""
        if not self.is_packed:
            return F.linear(x, self.weight, self.bias)
        if x.shape[0] == 0:
            return x.new_empty(0, self.out_features)
        if self.onednn is not None:
            return self._multiply(self.onednn, x.contiguous())
        if x.shape[0] == 1:
            return self._packed(x.repeat(2, 1))[:1]
        return self._packed(x)

    def _multiply(self, onednn: OneDNN, x: torch.Tensor) -> torch.Tensor:
        onednn.check()
        if x.dtype != self.dtype or x.shape[1] != self.in_features:
            raise ValueError(f"x must be {self.dtype} with {self.in_features} columns")
        rows, out = len(x), torch.empty(len(x), self.out_features, dtype=x.dtype)
        if rows == 1:  # of a single row the kernel reads two
            x = x.repeat(2, 1)
        load_library().tinyllm_multiply(
            ctypes.byref(onednn),
            ctypes.byref(self.args()),
            ctypes.c_void_p(x.data_ptr()),
            ctypes.c_int64(rows),
            ctypes.c_void_p(out.data_ptr()),
            ctypes.c_int32(0),
            ctypes.c_int32(torch.get_num_threads()),
        )
        return out

    def _packed(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out


def _onednn_for(weight: torch.Tensor) -> OneDNN | None:
    """Return what multiplies by blocks of this weight, or None where nothing does."""
    if weight.dtype == torch.bfloat16 and weight.shape[1] % 2:  # inputs come in pairs
        return None
    try:
        load_library()
    except NativeUnavailableError:
        return None
    return OneDNN.find(weight.dtype)


def _by_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Return ``weight [out, in]`` as ``[out / 48 rounded up, in, 48]``, in words of 32 bits.

    In bfloat16 a word is two inputs of a column.
    """
    words = weight.view(torch.int32)
    if rest := -len(words) % BLOCK:
        words = F.pad(words, (0, 0, 0, rest))
    return words.view(-1, BLOCK, words.shape[1]).transpose(1, 2).contiguous()
