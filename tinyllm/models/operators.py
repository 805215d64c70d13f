"""The small operators between the matrix products, twice: readable, and fused in C.

`TorchOperators` says what each one means and runs everywhere. `NativeOperators` reads and writes memory once
instead of once per arithmetic step, which at small batches is most of what a step costs beside its matrix
products. Both round where the other rounds, and compute each row as if it were alone.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch
from torch.nn import functional as F

from tinyllm.native.library import NativeUnavailableError, load_library

__all__ = ["NativeOperators", "Operators", "TorchOperators", "get_operators"]

ONE_THREAD = 32_768
"""PyTorch gives up to this many elements to one thread (``at::internal::GRAIN_SIZE``)."""


class Operators(Protocol):
    """What a decoder layer needs beside matrix products and attention. Rows are tokens."""

    def add_rms_norm(
        self, x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add x (if any) to ``residual [num_tokens, size]`` in place; return it over its rms by weight."""
        ...

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """Map ``[num_tokens, 2 * size]`` of gates and values to ``silu(gate) * value [num_tokens, size]``."""
        ...

    def norm_rotate(
        self,
        heads: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return q and k of ``heads [num_tokens, q + k + v heads, head_dim]``, normalised and rotated.

        ``rotary`` is cosines and sines ``[num_tokens, head_dim / 2]``. ``heads`` may be changed.
        """
        ...


class TorchOperators:
    """Plain PyTorch, on any device and in any dtype: the meaning of each operator."""

    def add_rms_norm(
        self, x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """Add, then normalise."""
        return rms_norm(residual if x is None else residual.add_(x), weight, eps)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """SwiGLU's middle (Shazeer, arXiv 2002.05202)."""
        gate, up = gate_up.chunk(2, dim=-1)
        return silu(gate) * up

    def norm_rotate(
        self,
        heads: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Per-head norm where there are weights, then rotation."""
        q, k = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
        if q_weight is not None and k_weight is not None:
            q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
        return rotate(q, *rotary), rotate(k, *rotary)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm (Zhang & Sennrich, arXiv 1910.07467), in float32, rounded before the weight."""
    return F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return ``x * sigmoid(x)`` of ``[rows, columns]``, each row as if it were alone.

    PyTorch computes the last few elements of a thread's share with another exp than the rest. So on the CPU
    x is cut into slabs too small to be shared out, and every row ends its own share (up to 32,768 columns).
    """
    if x.device.type != "cpu":
        return F.silu(x)
    return torch.cat([F.silu(slab) for slab in torch.split(x, max(1, ONE_THREAD // x.shape[1]))])


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn ``x [num_tokens, heads, head_dim]`` by each token's angles, ``[num_tokens, head_dim / 2]``."""
    cos, sin = (torch.cat((half, half), dim=-1).unsqueeze(1) for half in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


Pointer, Int64, Int32, Float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class _RotateArgs(ctypes.Structure):
    """``rotate_args`` of ``native/kernels.h``."""

    _fields_ = (
        ("heads", Pointer),
        ("q_weight", Pointer),
        ("k_weight", Pointer),
        ("cos", Pointer),
        ("sin", Pointer),
        ("positions", Pointer),
        ("tokens", Int64),
        ("stride", Int64),
        ("num_q", Int64),
        ("num_k", Int64),
        ("dim", Int64),
        ("eps", Float),
        ("bf16", Int32),
        ("num_threads", Int32),
    )


class NativeOperators:
    """The kernels of ``native/elementwise.c``, for float32 and bfloat16 on the CPU.

    Raises `NativeUnavailableError` when they cannot be built or loaded.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        library = load_library()
        self._bf16 = int(dtype == torch.bfloat16)
        self._add_rms_norm = library.tinyllm_add_rms_norm
        self._add_rms_norm.argtypes = (Pointer, Pointer, Pointer, Pointer, Int64, Int64, Float, Int32, Int32)
        self._silu_and_mul = library.tinyllm_silu_and_mul
        self._silu_and_mul.argtypes = (Pointer, Pointer, Int64, Int64, Int32, Int32)
        self._norm_rotate = library.tinyllm_norm_rotate
        self._norm_rotate.argtypes = (ctypes.POINTER(_RotateArgs),)
        for function in (self._add_rms_norm, self._silu_and_mul, self._norm_rotate):
            function.restype = None

    def add_rms_norm(
        self, x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """See `Operators`."""
        rows, size = residual.shape
        out = torch.empty(rows, size, dtype=residual.dtype)
        self._add_rms_norm(
            None if x is None else x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            size,
            eps,
            self._bf16,
            torch.get_num_threads(),
        )
        return out

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """See `Operators`."""
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(rows, size, dtype=gate_up.dtype)
        self._silu_and_mul(
            gate_up.data_ptr(), out.data_ptr(), rows, size, self._bf16, torch.get_num_threads()
        )
        return out

    def norm_rotate(
        self,
        heads: torch.Tensor,
        num_heads: int,
        num_kv_heads: int,
        q_weight: torch.Tensor | None,
        k_weight: torch.Tensor | None,
        eps: float,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `Operators`. Works in place."""
        cos, sin = rotary
        args = _RotateArgs(
            heads=heads.data_ptr(),
            q_weight=None if q_weight is None else q_weight.data_ptr(),
            k_weight=None if k_weight is None else k_weight.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            tokens=heads.shape[0],
            stride=heads.stride(0),
            num_q=num_heads,
            num_k=num_kv_heads,
            dim=heads.shape[2],
            eps=eps,
            bf16=self._bf16,
            num_threads=torch.get_num_threads(),
        )
        self._norm_rotate(ctypes.byref(args))
        return heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]


def get_operators(dtype: torch.dtype, device: torch.device) -> Operators:
    """Return the fastest operators that work here."""
    if device.type == "cpu" and dtype in (torch.float32, torch.bfloat16):
        try:
            return NativeOperators(dtype)
        except NativeUnavailableError:
            return TorchOperators()
    return TorchOperators()
