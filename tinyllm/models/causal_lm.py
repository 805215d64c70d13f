"""`CausalLM`: a decoder-only language model over a flat batch, whatever its architecture."""

from __future__ import annotations

import torch
from torch import nn

from tinyllm.artifacts.model import ModelConfig
from tinyllm.attention.metadata import AttentionBackend, AttentionMetadata, KVCacheSpec, LayerKVCache
from tinyllm.models.layers import Attention, DecoderLayer, Embedding, HeadNorm, RMSNorm
from tinyllm.models.linear import Linear
from tinyllm.models.native_decoder import NativeDecoder
from tinyllm.models.operators import Operators, get_operators
from tinyllm.models.rope import RotaryEmbedding
from tinyllm.models.weights import WeightReader

__all__ = ["CausalLM"]


class CausalLM(nn.Module):
    """Embedding, decoder layers, final norm, head. An architecture says what its attention is like."""

    def __init__(
        self, config: ModelConfig, backend: AttentionBackend, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.config, self.backend = config, backend
        self.dtype, self.device = dtype, device
        self.operators = get_operators(dtype, device)
        attentions = [self.make_attention() for _ in range(config.num_hidden_layers)]
        self.model = _Decoder(config, attentions, self.operators)
        self.lm_head = Linear("lm_head")
        self.rotary = RotaryEmbedding(config.rope, config.head_dim, dtype=dtype, device=device)
        self.native: NativeDecoder | None = None

    def make_attention(self) -> Attention:
        """Return the attention of one layer."""
        raise NotImplementedError

    def load(self, reader: WeightReader) -> None:
        """Read every weight, layer by layer.

        A tied head shares the embedding table, but a packed head is a second copy of it: lookups need the
        rows as they are.
        """
        for path, layer in self.named_modules():
            if layer is self.lm_head and self.config.tie_word_embeddings:
                self.lm_head.set_weight(self.model.embed_tokens.weight)
            elif isinstance(layer, (Embedding, HeadNorm, Linear, RMSNorm)):
                layer.load(path, reader)
        self.native = NativeDecoder.make(
            self.model.embed_tokens, [*self.model.layers], self.model.norm, self.lm_head, self.rotary
        )

    def kv_cache_spec(self, block_size: int, dtype: torch.dtype | None = None) -> KVCacheSpec:
        """Return the shape of a KV cache for this model; by default in the model's dtype."""
        return KVCacheSpec(
            num_layers=self.config.num_hidden_layers,
            num_kv_heads=self.config.num_key_value_heads,
            head_dim=self.config.head_dim,
            block_size=block_size,
            dtype=dtype or self.dtype,
            device=self.device,
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[LayerKVCache],
        metadata: AttentionMetadata,
    ) -> torch.Tensor:
        """Map int64 ``[num_tokens]`` ids and positions to ``[num_tokens, hidden_size]``, normalised.

        Keys and values of every token are stored in ``kv_caches``, one entry a layer.
        """
        if self.native is not None:
            return self.native(input_ids, positions, kv_caches, metadata)
        rotary = self.rotary(positions, max(metadata.seq_lens))
        residual, x = self.model.embed_tokens(input_ids), None
        for layer, kv_cache in zip(self.model.layers, kv_caches, strict=True):
            x = layer(x, residual, rotary, kv_cache, metadata)
        out: torch.Tensor = self.model.norm(x, residual)
        return out

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map ``[num_rows, hidden_size]`` to float32 ``[num_rows, vocab_size]``."""
        if self.native is not None:
            return self.native.logits(hidden)
        logits: torch.Tensor = self.lm_head(hidden)
        return logits.float()


class _Decoder(nn.Module):
    """What checkpoints call ``model``: everything but the head."""

    def __init__(self, config: ModelConfig, attentions: list[Attention], operators: Operators) -> None:
        super().__init__()
        self.embed_tokens = Embedding()
        self.layers = nn.ModuleList(DecoderLayer(config, attention, operators) for attention in attentions)
        self.norm = RMSNorm(config.rms_norm_eps, operators)
