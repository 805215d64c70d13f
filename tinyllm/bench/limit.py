"""How fast a model can be at all on a machine that reads and multiplies so much a second.

A step takes at least the time to read what it needs, and at least the time to compute it:
``max(bytes / W, flops / F)`` (the roofline model; Williams, Waterman and Patterson, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyllm.artifacts.model import ModelConfig
from tinyllm.bench.workload import Workload

__all__ = ["Machine", "ModelShape"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine can do, measured."""

    bytes_per_second: float
    """W: memory read."""
    flops: float
    """F: of matrix products, in the dtype at hand."""

    def seconds(self, num_bytes: float, flops: float) -> float:
        """Return the least time for this much reading and computing, side by side."""
        return max(num_bytes / self.bytes_per_second, flops / self.flops)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes that costs follow from. Norms, rotary positions and sampling count as nothing."""

    linears: tuple[tuple[int, int], ...]
    """``(out_features, in_features)`` of every matrix of one layer, fused as the models fuse them."""
    num_layers: int
    head: tuple[int, int]
    kv_elements: int
    """Numbers stored for one token, over all layers."""
    attention_flops: int
    """For one query and one token of its context, over all layers."""

    @classmethod
    def of(cls, config: ModelConfig) -> ModelShape:
        """Return the sizes of a model."""
        hidden, inner = config.hidden_size, config.intermediate_size
        q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        return cls(
            linears=((q + 2 * kv, hidden), (hidden, q), (2 * inner, hidden), (hidden, inner)),
            num_layers=config.num_hidden_layers,
            head=(config.vocab_size, hidden),
            kv_elements=2 * config.num_hidden_layers * kv,
            attention_flops=4 * config.num_hidden_layers * q,
        )

    @property
    def layer_weights(self) -> int:
        """Weights of all layers."""
        return self.num_layers * sum(rows * columns for rows, columns in self.linears)

    @property
    def head_weights(self) -> int:
        """Weights of the head."""
        return self.head[0] * self.head[1]

    def decode_rate(self, machine: Machine, workload: Workload, weight_bytes: int, kv_bytes: int) -> float:
        """Return the most tokens a second; a weight and a stored number have so many bytes each."""
        weights = self.layer_weights + self.head_weights
        context = workload.prompt_tokens + workload.output_tokens / 2
        read = weights * weight_bytes + workload.batch * context * self.kv_elements * kv_bytes
        flops = workload.batch * (2 * weights + self.attention_flops * context)
        return workload.batch / machine.seconds(read, flops)

    def prefill_rate(self, machine: Machine, workload: Workload, weight_bytes: int) -> float:
        """Return the most prompt tokens a second, of all prompts together, without any shared beginning."""
        tokens = workload.batch * workload.prompt_tokens
        per_token = 2 * self.layer_weights + self.attention_flops * workload.prompt_tokens / 2
        flops = tokens * per_token + workload.batch * 2 * self.head_weights
        read = (self.layer_weights + self.head_weights) * weight_bytes
        return tokens / machine.seconds(read, flops)
