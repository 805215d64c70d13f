"""`NativeDecoder`: all layers of a step in one call into ``native/decoder.c``.

It gives what running `DecoderLayer` after `DecoderLayer` gives, bit for bit, without coming back to Python
between two operators. A decode step has hundreds of them, each a few microseconds long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from tinyllm.attention.metadata import AttentionMetadata
from tinyllm.attention.paged import AttentionArgs, PagedAttention, PagedMetadata, attention_args
from tinyllm.models.layers import DecoderLayer, Embedding, HeadNorm, RMSNorm
from tinyllm.models.linear import Linear, LinearArgs
from tinyllm.models.onednn import OneDNN
from tinyllm.models.operators import NativeOperators
from tinyllm.models.rope import RotaryEmbedding
from tinyllm.native.library import load_library

__all__ = ["NativeDecoder"]

Pointer, Int64, Int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class _Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", LinearArgs),
        ("o", LinearArgs),
        ("gate_up", LinearArgs),
        ("down", LinearArgs),
        ("input_norm", Pointer),
        ("post_attention_norm", Pointer),
        ("q_norm", Pointer),
        ("k_norm", Pointer),
        ("keys", Pointer),
        ("values", Pointer),
    )


class _DecodeArgs(ctypes.Structure):
    _fields_ = (
        ("products", OneDNN),
        ("layers", Pointer),
        ("num_layers", Int64),
        ("num_tokens", Int64),
        ("hidden_size", Int64),
        ("intermediate_size", Int64),
        ("token_ids", Pointer),
        ("positions", Pointer),
        ("slots", Pointer),
        ("embedding", Pointer),
        ("vocab_size", Int64),
        ("cos", Pointer),
        ("sin", Pointer),
        ("num_positions", Int64),
        ("residual", Pointer),
        ("normed", Pointer),
        ("qkv", Pointer),
        ("attended", Pointer),
        ("gate_up", Pointer),
        ("activated", Pointer),
        ("final_norm", Pointer),
        ("out", Pointer),
        ("eps", ctypes.c_float),
        ("attention", AttentionArgs),
    )


class NativeDecoder:
    """Runs embedding, layers, final norm and head of one loaded model. See `make` for when there is one."""

    def __init__(
        self,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: Linear,
        rotary: RotaryEmbedding,
        onednn: OneDNN,
    ) -> None:
        library = load_library()
        self._decode, self._multiply = library.tinyllm_decode, library.tinyllm_multiply
        self._decode.argtypes, self._decode.restype = (ctypes.POINTER(_DecodeArgs),), Int32
        self._owners = (embedding, layers, norm, head)  # whose memory C reads
        self._dtype, self._onednn = norm.weight.dtype, onednn
        self._rotary, self._head = rotary, head.args()
        self._layers = (_Layer * len(layers))(*map(_layer, layers))
        attention = layers[0].self_attn
        self._num_heads, self._num_kv_heads = attention.num_heads, attention.num_kv_heads
        self._head_dim = attention.head_dim
        vocab_size, hidden_size = embedding.weight.shape
        intermediate_size = layers[0].mlp.gate_up_proj.out_features // 2
        self._args = _DecodeArgs(
            products=onednn,
            layers=ctypes.addressof(self._layers),
            num_layers=len(layers),
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            embedding=embedding.weight.data_ptr(),
            vocab_size=vocab_size,
            final_norm=norm.weight.data_ptr(),
            eps=norm.eps,
        )
        self._widths = {
            "residual": hidden_size,
            "normed": hidden_size,
            "qkv": attention.qkv_proj.out_features,
            "attended": self._num_heads * self._head_dim,
            "gate_up": 2 * intermediate_size,
            "activated": intermediate_size,
        }
        self._workspaces: list[torch.Tensor] = []
        self._capacity = 0

    @classmethod
    def make(
        cls,
        embedding: Embedding,
        layers: Sequence[DecoderLayer],
        norm: RMSNorm,
        head: Linear,
        rotary: RotaryEmbedding,
    ) -> NativeDecoder | None:
        """Return a decoder for layers whose every operator is native; None if any is not."""
        linears = [module for layer in layers for module in layer.modules() if isinstance(module, Linear)]
        onednn = head.onednn
        if onednn is None or any(each.onednn is None for each in linears):
            return None
        if not isinstance(norm.operators, NativeOperators):
            return None
        if not all(isinstance(layer.self_attn.backend, PagedAttention) for layer in layers):
            return None
        return cls(embedding, layers, norm, head, rotary, onednn)

    def __call__(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """See `CausalLM.forward`.

        Nothing before the call into C lets go of the interpreter, so that what other threads have to do in
        Python happens beside the layers and not before them.
        """
        if not isinstance(metadata, PagedMetadata):
            raise TypeError("metadata must come from the paged backend")
        for tensor in (token_ids, positions):
            if tensor.dtype != torch.int64 or not tensor.is_contiguous():
                raise ValueError("token_ids and positions must be contiguous int64")
        if not len(token_ids) == len(positions) == len(metadata.slot_mapping) == metadata.query_start_loc[-1]:
            raise ValueError("token_ids, positions and metadata are of different numbers of tokens")
        self._onednn.check()
        num_tokens, args = len(token_ids), self._args
        self._bind(kv_caches)
        args.num_tokens = num_tokens
        self._reserve(num_tokens)
        self._rotary.reserve(max(metadata.seq_lens))
        args.cos, args.sin = self._rotary.cos.data_ptr(), self._rotary.sin.data_ptr()
        args.num_positions = len(self._rotary.cos)
        args.token_ids, args.positions = token_ids.data_ptr(), positions.data_ptr()
        args.slots = metadata.slot_mapping.data_ptr()
        out = np.empty(num_tokens * args.hidden_size * self._dtype.itemsize, dtype=np.uint8)
        args.out = out.ctypes.data
        args.attention, _workspace = attention_args(
            metadata,
            self._num_heads,
            self._num_kv_heads,
            self._head_dim,
            kv_caches[0],
            self._dtype,
            self._head_dim**-0.5,
        )
        if self._decode(ctypes.byref(args)):
            raise IndexError("a token id or position is out of range")
        return torch.from_numpy(out).view(self._dtype).view(num_tokens, -1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `CausalLM.compute_logits`."""
        self._onednn.check()
        num_rows, args = len(hidden), self._args
        if hidden.dtype != self._dtype or hidden.shape[1] != args.hidden_size:
            raise ValueError(f"hidden must be {self._dtype} with {args.hidden_size} columns")
        self._reserve(num_rows)
        ctypes.memmove(args.normed, hidden.contiguous().data_ptr(), hidden.nbytes)
        out = np.empty((num_rows, args.vocab_size), dtype=np.float32)
        self._multiply(
            ctypes.byref(self._onednn),
            ctypes.byref(self._head),
            Pointer(args.normed),
            Int64(num_rows),
            Pointer(out.ctypes.data),
            Int32(True),
            Int32(torch.get_num_threads()),
        )
        return torch.from_numpy(out)

    def _bind(self, kv_caches: list[torch.Tensor]) -> None:
        """Point every layer to its KV cache, whose first half is keys and whose second is values."""
        for layer, cache in zip(self._layers, kv_caches, strict=True):
            layer.keys = cache.data_ptr()
            layer.values = layer.keys + cache.nbytes // 2

    def _reserve(self, num_rows: int) -> None:
        """Have workspaces for so many rows, which later steps use again."""
        if num_rows <= self._capacity:
            return
        self._capacity = max(2, num_rows)  # of a single row the kernel reads two
        self._workspaces = [
            torch.zeros(self._capacity, width, dtype=self._dtype) for width in self._widths.values()
        ]
        for name, workspace in zip(self._widths, self._workspaces, strict=True):
            setattr(self._args, name, workspace.data_ptr())


def _layer(layer: DecoderLayer) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    return _Layer(
        qkv=attention.qkv_proj.args(),
        o=attention.o_proj.args(),
        gate_up=mlp.gate_up_proj.args(),
        down=mlp.down_proj.args(),
        input_norm=layer.input_layernorm.weight.data_ptr(),
        post_attention_norm=layer.post_attention_layernorm.weight.data_ptr(),
        q_norm=_weight(attention.q_norm),
        k_norm=_weight(attention.k_norm),
    )


def _weight(norm: HeadNorm | None) -> int | None:
    return None if norm is None else norm.weight.data_ptr()
