"""Which class runs which architecture. A new one is a file beside this one, and a line here."""

from __future__ import annotations

from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.llama import LlamaForCausalLM
from tinyllm.models.qwen2 import Qwen2ForCausalLM
from tinyllm.models.qwen3 import Qwen3ForCausalLM

__all__ = ["MODELS"]

MODELS: dict[str, type[CausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "Qwen2ForCausalLM": Qwen2ForCausalLM,
    "Qwen3ForCausalLM": Qwen3ForCausalLM,
}
