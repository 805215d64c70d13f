"""`NativeDecoder`: all layers of a step in one call into ``native/decoder.c``.

It gives what running `DecoderLayer` after `DecoderLayer` gives, bit for bit, without coming back to Python
between two operators. A decode step has hundreds of them, each a few microseconds long.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from tinyllm.attention.metadata import AttentionMetadata
from tinyllm.attention.paged import AttentionArgs, PagedAttention, PagedMetadata, attention_args
from tinyllm.models.layers import DecoderLayer, HeadNorm, RMSNorm
from tinyllm.models.linear import Linear
from tinyllm.models.operators import NativeOperators
from tinyllm.native.library import load_library

__all__ = ["NativeDecoder"]

Pointer, Int64, Int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class _TorchAPI(ctypes.Structure):
    _fields_ = (
        ("linear", Pointer),
        ("from_blob", Pointer),
        ("data_pointer", Pointer),
        ("release", Pointer),
        ("dtype", Int32),
        ("device_type", Int32),
    )


class _Linear(ctypes.Structure):
    _fields_ = (("weight", Pointer), ("bias", Pointer))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", _Linear),
        ("o", _Linear),
        ("gate_up", _Linear),
        ("down", _Linear),
        ("input_norm", Pointer),
        ("post_attention_norm", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
        ("keys", Pointer),
        ("values", Pointer),
    )


class _DecodeArgs(ctypes.Structure):
    _fields_ = (
        ("torch", ctypes.POINTER(_TorchAPI)),
        ("layers", Pointer),
        ("num_layers", Int64),
        ("num_tokens", Int64),
        ("product_rows", Int64),
        ("hidden_size", Int64),
        ("intermediate_size", Int64),
        ("residual", Pointer),
        ("normed", Pointer),
        ("attended", Pointer),
        ("activated", Pointer),
        ("out", Pointer),
        ("final_norm", Pointer),
        ("cos", Pointer),
        ("sin", Pointer),
        ("slots", Pointer),
        ("eps", ctypes.c_float),
        ("attention", AttentionArgs),
    )


_SHIM: Final = {
    "linear": "aoti_torch_cpu__linear_pointwise",
    "from_blob": "aoti_torch_create_tensor_from_blob",
    "data_pointer": "aoti_torch_get_data_ptr",
    "release": "aoti_torch_delete_tensor_object",
}
"""PyTorch's C functions, by what they are called in `_TorchAPI`. Its compiled models are linked to them."""


_SUFFIX: Final = "dylib" if sys.platform == "darwin" else "so"
_TORCH_LIBRARY: Final = Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{_SUFFIX}"

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), Pointer


class NativeDecoder:
    """Runs the layers and the final norm of one loaded model. See `make` for when there is one."""

    def __init__(self, layers: Sequence[DecoderLayer], norm: RMSNorm, dtype: torch.dtype) -> None:
        """Raises `OSError` or `AttributeError` where PyTorch has no such interface."""
        self._torch = _torch_api(dtype)
        self._decode = load_library().tinyllm_decode
        self._decode.argtypes, self._decode.restype = (ctypes.POINTER(_DecodeArgs),), Int32
        self._release = ctypes.CFUNCTYPE(Int32, Pointer)(self._torch.release)
        self._owners = (layers, norm)  # whose memory C reads
        self._layers = (_Layer * len(layers))(*map(self._layer, layers))
        self._kv_caches: list[torch.Tensor] = []
        attention, mlp = layers[0].self_attn, layers[0].mlp
        self._num_heads, self._num_kv_heads = attention.num_heads, attention.num_kv_heads
        self._head_dim, self._eps = attention.head_dim, norm.eps
        self._intermediate_size = mlp.gate_up_proj.out_features // 2
        self._final_norm = norm.weight.data_ptr()

    @classmethod
    def make(cls, layers: Sequence[DecoderLayer], norm: RMSNorm, dtype: torch.dtype) -> NativeDecoder | None:
        """Return a decoder for layers whose every operator is native or packed; None if any is not."""
        linears = [module for layer in layers for module in layer.modules() if isinstance(module, Linear)]
        if not isinstance(norm.operators, NativeOperators) or not all(each.is_packed for each in linears):
            return None
        if not all(isinstance(layer.self_attn.backend, PagedAttention) for layer in layers):
            return None
        try:
            return cls(layers, norm, dtype)
        except (OSError, AttributeError):  # this PyTorch has no such interface
            return None

    def __call__(
        self,
        residual: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Map embeddings ``[num_tokens, hidden_size]``, which are overwritten, to the normalised output."""
        if not isinstance(metadata, PagedMetadata):
            raise TypeError("metadata must come from the paged backend")
        self._bind(kv_caches)
        num_tokens, hidden_size = residual.shape
        product_rows = max(num_tokens, 2)  # see models/linear.py
        widths = (hidden_size, self._num_heads * self._head_dim, self._intermediate_size)
        normed, attended, activated = (
            torch.zeros(product_rows, width, dtype=residual.dtype) for width in widths
        )
        out = torch.empty_like(residual)
        attention, _workspace = attention_args(
            metadata,
            self._num_heads,
            self._num_kv_heads,
            self._head_dim,
            kv_caches[0],
            residual.dtype,
            self._head_dim**-0.5,
        )
        args = _DecodeArgs(
            torch=ctypes.pointer(self._torch),
            layers=ctypes.addressof(self._layers),
            num_layers=len(self._layers),
            num_tokens=num_tokens,
            product_rows=product_rows,
            hidden_size=hidden_size,
            intermediate_size=self._intermediate_size,
            residual=residual.data_ptr(),
            normed=normed.data_ptr(),
            attended=attended.data_ptr(),
            activated=activated.data_ptr(),
            out=out.data_ptr(),
            final_norm=self._final_norm,
            cos=rotary[0].data_ptr(),
            sin=rotary[1].data_ptr(),
            slots=metadata.slot_mapping.data_ptr(),
            eps=self._eps,
            attention=attention,
        )
        if self._decode(ctypes.byref(args)):
            raise RuntimeError("a matrix product failed inside PyTorch")
        return out

    def _bind(self, kv_caches: list[torch.Tensor]) -> None:
        """Point every layer to its KV cache."""
        if kv_caches is self._kv_caches:
            return
        self._kv_caches = kv_caches
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            layer.keys, layer.values = cache[0].data_ptr(), cache[1].data_ptr()

    def _layer(self, layer: DecoderLayer) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        return _Layer(
            qkv=self._linear(attention.qkv_proj),
            o=self._linear(attention.o_proj),
            gate_up=self._linear(mlp.gate_up_proj),
            down=self._linear(mlp.down_proj),
            input_norm=layer.input_layernorm.weight.data_ptr(),
            post_attention_norm=layer.post_attention_layernorm.weight.data_ptr(),
            q_norm=_weight(attention.q_norm),
            k_norm=_weight(attention.k_norm),
        )

    def _linear(self, linear: Linear) -> _Linear:
        return _Linear(
            self._handle(linear.weight), None if linear.bias is None else self._handle(linear.bias)
        )

    def _handle(self, tensor: torch.Tensor) -> int:
        """Return a new handle of ``tensor`` for C, released with this decoder."""
        capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
        handle: int = _capsule_pointer(capsule, None)
        weakref.finalize(self, self._release, handle)
        return handle


def _torch_api(dtype: torch.dtype) -> _TorchAPI:
    library = ctypes.CDLL(str(_TORCH_LIBRARY))
    functions = {field: ctypes.cast(getattr(library, name), Pointer) for field, name in _SHIM.items()}
    dtype_code = {
        torch.float32: library.aoti_torch_dtype_float32,
        torch.bfloat16: library.aoti_torch_dtype_bfloat16,
    }
    return _TorchAPI(**functions, dtype=dtype_code[dtype](), device_type=library.aoti_torch_device_type_cpu())


def _weight(norm: HeadNorm | None) -> int | None:
    return None if norm is None else norm.weight.data_ptr()
