"""Llama 2 and 3, SmolLM2, and whatever else calls itself `LlamaForCausalLM`."""

from __future__ import annotations

from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.layers import Attention

__all__ = ["LlamaForCausalLM"]


class LlamaForCausalLM(CausalLM):
    """Plain grouped-query attention; biases only where the config asks for them."""

    def make_attention(self) -> Attention:
        """Return the attention of one layer."""
        config = self.config
        return Attention(
            config,
            self.backend,
            self.operators,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_output_bias,
        )
