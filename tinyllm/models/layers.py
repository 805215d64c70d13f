"""The layers that every architecture is made of. Activations are flat: ``[num_tokens, hidden_size]``.

A layer's attributes have the checkpoint's names. It takes no memory for weights before `load`.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tinyllm.artifacts.model import ModelConfig
from tinyllm.attention.metadata import AttentionBackend, AttentionMetadata, LayerKVCache
from tinyllm.models.linear import Linear
from tinyllm.models.rope import apply_rotary
from tinyllm.models.weights import WeightReader

__all__ = ["MLP", "Attention", "DecoderLayer", "Embedding", "RMSNorm", "silu_"]

ONE_THREAD = 32_768
"""PyTorch gives up to this many elements to one thread (``at::internal::GRAIN_SIZE``)."""


class Embedding(nn.Module):
    """A vector for each token id."""

    weight: torch.Tensor
    """``[vocab_size, hidden_size]``"""

    def load(self, path: str, reader: WeightReader) -> None:
        """Read the table. ``path`` is this layer's name in the model."""
        self.weight = reader.read(f"{path}.weight")

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Map int64 ``[num_tokens]`` to ``[num_tokens, hidden_size]``."""
        return F.embedding(token_ids, self.weight)


class RMSNorm(nn.Module):
    """Division by the root mean square of the last dimension (Zhang & Sennrich, arXiv 1910.07467)."""

    weight: torch.Tensor
    """``[size]``"""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def load(self, path: str, reader: WeightReader) -> None:
        """Read the weight. ``path`` is this layer's name in the model."""
        self.weight = reader.read(f"{path}.weight")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[..., size]`` to the same shape: in float32, rounded before the weight, as in training."""
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight


class MLP(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))`` (Shazeer, arXiv 2002.05202). Gate and up are one product."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = Linear("gate_proj", "up_proj", bias=config.mlp_bias)
        self.down_proj = Linear("down_proj", bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[num_tokens, hidden_size]`` to the same shape."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: torch.Tensor = self.down_proj(silu_(gate) * up)
        return out


def silu_(x: torch.Tensor) -> torch.Tensor:
    """Apply ``x * sigmoid(x)`` in place to ``[rows, columns]``, each row as if it were alone.

    PyTorch computes the last few elements of a thread's share with another exp than the rest. So on the CPU
    x is cut into slabs too small to be shared out, and every row ends its own share (up to 32,768 columns).
    """
    if x.device.type != "cpu":
        return F.silu(x, inplace=True)
    for slab in torch.split(x, max(1, ONE_THREAD // x.shape[1])):
        F.silu(slab, inplace=True)
    return x


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. Queries, keys and values are one product."""

    def __init__(
        self,
        config: ModelConfig,
        backend: AttentionBackend,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.qkv_proj = Linear("q_proj", "k_proj", "v_proj", bias=qkv_bias)
        self.o_proj = Linear("o_proj", bias=output_bias)
        self.qk_norm = qk_norm
        if qk_norm:
            self.q_norm = RMSNorm(config.rms_norm_eps)
            self.k_norm = RMSNorm(config.rms_norm_eps)

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        kv_cache: LayerKVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Map ``[num_tokens, hidden_size]`` to the same shape; keys and values go to ``kv_cache``."""
        heads = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        qk, v = torch.split(heads, [self.num_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.qk_norm:
            q, k = torch.split(qk, [self.num_heads, self.num_kv_heads], dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        q, k = torch.split(apply_rotary(qk, *rotary), [self.num_heads, self.num_kv_heads], dim=1)
        attended = self.backend.forward(q, k, v, kv_cache, metadata, self.head_dim**-0.5)
        out: torch.Tensor = self.o_proj(attended.flatten(1))
        return out


class DecoderLayer(nn.Module):
    """Attention, then MLP: each reads the normalised residual stream and adds to it."""

    def __init__(self, config: ModelConfig, attention: Attention) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.rms_norm_eps)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        kv_cache: LayerKVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Map ``[num_tokens, hidden_size]`` to the same shape."""
        x = x + self.self_attn(self.input_layernorm(x), rotary, kv_cache, metadata)
        return x.add_(self.mlp(self.post_attention_layernorm(x)))
