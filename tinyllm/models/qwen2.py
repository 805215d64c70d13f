"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.layers import Attention

__all__ = ["Qwen2ForCausalLM"]


class Qwen2ForCausalLM(CausalLM):
    """As Llama, with a bias on queries, keys and values, always, and none on the output."""

    def make_attention(self) -> Attention:
        """Return the attention of one layer."""
        return Attention(self.config, self.backend, self.operators, qkv_bias=True)
