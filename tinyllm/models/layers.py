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
from tinyllm.models.operators import Operators
from tinyllm.models.weights import WeightReader

__all__ = ["MLP", "Attention", "DecoderLayer", "Embedding", "HeadNorm", "RMSNorm"]


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
    """Root mean square norm of the residual stream."""

    weight: torch.Tensor
    """``[size]``"""

    def __init__(self, eps: float, operators: Operators) -> None:
        super().__init__()
        self.eps, self.operators = eps, operators

    def load(self, path: str, reader: WeightReader) -> None:
        """Read the weight. ``path`` is this layer's name in the model."""
        self.weight = reader.read(f"{path}.weight")

    def forward(self, x: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        """Add x to ``residual [num_tokens, size]`` in place, and return that normalised."""
        return self.operators.add_rms_norm(x, residual, self.weight, self.eps)


class MLP(nn.Module):
    """SwiGLU: ``down(silu(gate(x)) * up(x))`` (Shazeer, arXiv 2002.05202). Gate and up are one product."""

    def __init__(self, config: ModelConfig, operators: Operators) -> None:
        super().__init__()
        self.operators = operators
        self.gate_up_proj = Linear("gate_proj", "up_proj", bias=config.mlp_bias)
        self.down_proj = Linear("down_proj", bias=config.mlp_bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map ``[num_tokens, hidden_size]`` to the same shape."""
        out: torch.Tensor = self.down_proj(self.operators.silu_and_mul(self.gate_up_proj(x)))
        return out


class Attention(nn.Module):
    """Grouped-query attention with rotary positions. Queries, keys and values are one product."""

    def __init__(
        self,
        config: ModelConfig,
        backend: AttentionBackend,
        operators: Operators,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backend, self.operators = backend, operators
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.eps = config.head_dim, config.rms_norm_eps
        self.qkv_proj = Linear("q_proj", "k_proj", "v_proj", bias=qkv_bias)
        self.o_proj = Linear("o_proj", bias=output_bias)
        self.q_norm = HeadNorm() if qk_norm else None
        self.k_norm = HeadNorm() if qk_norm else None

    def forward(
        self,
        x: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        kv_cache: LayerKVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Map ``[num_tokens, hidden_size]`` to the same shape; keys and values go to ``kv_cache``."""
        heads = self.qkv_proj(x).view(x.shape[0], -1, self.head_dim)
        q, k = self.operators.norm_rotate(
            heads,
            self.num_heads,
            self.num_kv_heads,
            None if self.q_norm is None else self.q_norm.weight,
            None if self.k_norm is None else self.k_norm.weight,
            self.eps,
            rotary,
        )
        v = heads[:, self.num_heads + self.num_kv_heads :]
        attended = self.backend.forward(q, k, v, kv_cache, metadata, self.head_dim**-0.5)
        out: torch.Tensor = self.o_proj(attended.flatten(1))
        return out


class HeadNorm(nn.Module):
    """The weight of a root mean square norm over each head; `Operators.norm_rotate` applies it."""

    weight: torch.Tensor
    """``[head_dim]``"""

    def load(self, path: str, reader: WeightReader) -> None:
        """Read the weight. ``path`` is this layer's name in the model."""
        self.weight = reader.read(f"{path}.weight")


class DecoderLayer(nn.Module):
    """Attention, then MLP: each reads the normalised residual stream and adds to it."""

    def __init__(self, config: ModelConfig, attention: Attention, operators: Operators) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.rms_norm_eps, operators)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(config.rms_norm_eps, operators)
        self.mlp = MLP(config, operators)

    def forward(
        self,
        x: torch.Tensor | None,
        residual: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        kv_cache: LayerKVCache,
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Add x, what the layer before found, to the residual stream; return what this one finds.

        All are ``[num_tokens, hidden_size]``. Adding late lets the norm that follows do it in the same pass.
        """
        x = self.self_attn(self.input_layernorm(x, residual), rotary, kv_cache, metadata)
        out: torch.Tensor = self.mlp(self.post_attention_layernorm(x, residual))
        return out
