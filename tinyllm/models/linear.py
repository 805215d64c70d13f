"""`Linear`: every matrix product with weights, fused from parts, and independent from row to row.

On the CPU, in float32 and bfloat16, the weight is packed once into oneDNN's own layout. That is 1.5 to 4
times faster than `torch.nn.functional.linear`, and a row's result no longer depends on how many other rows
there are, bit for bit, as long as there are at least two: a single row takes another kernel, so it is
computed twice. Elsewhere `torch.nn.functional.linear` is used, which promises no such thing.

The packing operators are private to PyTorch (its compiler uses them), so they are named in this file only and
their existence is checked. `TorchShim` has the same product for C.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tinyllm.models.weights import WeightReader

__all__ = ["Linear", "can_pack"]

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


class Linear(nn.Module):
    """``x @ weight.T + bias`` on ``[num_tokens, in_features]``.

    ``parts`` names the checkpoint's tensors that are stacked into the one weight, such as ``q_proj``,
    ``k_proj``, ``v_proj``. The weight takes no memory before `load`.
    """

    weight: torch.Tensor
    """``[out_features, in_features]``, or its packed form."""
    bias: torch.Tensor | None
    """``[out_features]``"""

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
        self.out_features = weight.shape[0]
        self.is_packed = can_pack(weight.dtype, weight.device)
        # None: packed for no particular number of rows.
        self.weight = _mkldnn._reorder_linear_weight(weight, None) if self.is_packed else weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[num_tokens, in_features]`` to ``[num_tokens, out_features]``."""
        if not self.is_packed:
            return F.linear(x, self.weight, self.bias)
        if x.shape[0] == 0:
            return x.new_empty(0, self.out_features)
        if x.shape[0] == 1:
            return self._packed(x.repeat(2, 1))[:1]
        return self._packed(x)

    def _packed(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return out
