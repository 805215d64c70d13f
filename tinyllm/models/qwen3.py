"""Qwen3, the dense ones."""

from __future__ import annotations

from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.layers import Attention

__all__ = ["Qwen3ForCausalLM"]


class Qwen3ForCausalLM(CausalLM):
    """As Llama, with queries and keys normalised head by head before they are turned."""

    def make_attention(self) -> Attention:
        """Return the attention of one layer."""
        config = self.config
        return Attention(
            config,
            self.backend,
            self.operators,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_output_bias,
            qk_norm=True,
        )
