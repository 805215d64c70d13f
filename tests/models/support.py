"""Random models and batches that several tests share."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.model import ModelConfig, RopeConfig, TensorInfo
from tinyllm.attention.metadata import AttentionBackend
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.loader import load_model
from tinyllm.models.registry import MODELS
from tinyllm.models.weights import WeightReader

CPU = torch.device("cpu")

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=199,
    hidden_size=60,  # no multiple of a vector's width, so that leftovers are computed too
    intermediate_size=90,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=20,
    max_position_embeddings=2048,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    attention_bias=False,
    attention_output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_word_embeddings=False,
    dtype="float32",
)


def load(path: Path, dtype: torch.dtype = torch.float32, backend: AttentionBackend | None = None) -> CausalLM:
    return load_model(
        open_directory(path), dtype=dtype, device=CPU, backend=backend or ReferenceBackend(), progress=False
    )


def random_model(
    config: ModelConfig = CONFIG,
    dtype: torch.dtype = torch.float32,
    backend: AttentionBackend | None = None,
) -> CausalLM:
    model = MODELS[config.architecture](config, backend or ReferenceBackend(), dtype=dtype, device=CPU)
    model.load(WeightReader(RandomWeights(config), dtype=dtype, device=CPU))
    return model


def qwen3_config() -> ModelConfig:
    return replace(
        CONFIG, architecture="Qwen3ForCausalLM", qk_norm=True, attention_bias=True, tie_word_embeddings=True
    )


class RandomWeights:
    """A `WeightSource` whose tensors are random, the same for the same name."""

    def __init__(self, config: ModelConfig) -> None:
        shapes = tensor_shapes(config)
        self.tensors: Mapping[str, TensorInfo] = {
            name: TensorInfo(name, "F32", shape, "random", 4 * torch.Size(shape).numel())
            for name, shape in shapes.items()
        }

    def read_into(self, name: str, out: torch.Tensor) -> None:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        values = torch.randn(out.shape, generator=generator) / 6
        out.copy_(values + 1 if "norm" in name else values)


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        linears = [("self_attn.q_proj", q, hidden, config.attention_bias)]
        linears += [(f"self_attn.{part}_proj", kv, hidden, config.attention_bias) for part in "kv"]
        linears += [("self_attn.o_proj", hidden, q, config.attention_output_bias)]
        linears += [(f"mlp.{part}_proj", inner, hidden, config.mlp_bias) for part in ("gate", "up")]
        linears += [("mlp.down_proj", hidden, inner, config.mlp_bias)]
        for name, rows, columns, bias in linears:
            shapes[f"{layer}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{layer}{name}.bias"] = (rows,)
        shapes[f"{layer}input_layernorm.weight"] = shapes[f"{layer}post_attention_layernorm.weight"] = (
            hidden,
        )
        if config.qk_norm:
            shapes[f"{layer}self_attn.q_norm.weight"] = (config.head_dim,)
            shapes[f"{layer}self_attn.k_norm.weight"] = (config.head_dim,)
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


@dataclass
class Tracked:
    """A sequence whose tokens are computed bit by bit, and the hidden rows so far."""

    token_ids: list[int]
    blocks: list[int]
    rows: list[torch.Tensor] = field(default_factory=list)

    @property
    def num_computed(self) -> int:
        return sum(len(rows) for rows in self.rows)

    @property
    def hidden(self) -> torch.Tensor:
        return torch.cat(self.rows)


class Batch:
    """Paged sequences on one model, computed by hand: any tokens of any of them in any step.

    ``garbage`` fills the cache beforehand; ``room`` is for tokens that are appended later.
    """

    def __init__(
        self,
        model: CausalLM,
        token_ids: Sequence[Sequence[int]],
        *,
        block_size: int = 16,
        seed: int = 0,
        kv_cache_dtype: torch.dtype | None = None,
        garbage: float | None = None,
        room: int = 0,
    ) -> None:
        self.model = model
        self.spec = model.kv_cache_spec(block_size, kv_cache_dtype)
        needed = [-(-(len(ids) + room) // block_size) for ids in token_ids]
        free = list(range(sum(needed) + 3))
        random.Random(seed).shuffle(free)
        self.caches = model.backend.allocate(self.spec, len(free))
        if garbage is not None:
            for cache in self.caches:
                cache.fill_(garbage)
        self.sequences = [
            Tracked(list(ids), [free.pop() for _ in range(count)])
            for ids, count in zip(token_ids, needed, strict=True)
        ]

    @torch.inference_mode()
    def step(self, counts: Mapping[int, int]) -> None:
        """Compute the next ``counts[i]`` tokens of sequence i, in the mapping's order."""
        input_ids: list[int] = []
        positions: list[int] = []
        starts, lens, tables = [0], [], []
        for i, count in counts.items():
            sequence = self.sequences[i]
            first = sequence.num_computed
            input_ids += sequence.token_ids[first : first + count]
            positions += range(first, first + count)
            starts.append(len(input_ids))
            lens.append(first + count)
            tables.append(sequence.blocks[: -(-(first + count) // self.spec.block_size)])
        metadata = self.model.backend.build_metadata(self.spec, starts, lens, tables)
        hidden = self.model(torch.tensor(input_ids), torch.tensor(positions), self.caches, metadata)
        for i, rows in zip(counts, torch.split(hidden, list(counts.values())), strict=True):
            self.sequences[i].rows.append(rows.clone())


def alone(
    model: CausalLM, token_ids: Sequence[int], kv_cache_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Hidden states of a sequence computed in one step, contiguously, with nobody else."""
    whole = -(-len(token_ids) // 16) * 16
    batch = Batch(model, [token_ids], block_size=whole, kv_cache_dtype=kv_cache_dtype)
    batch.step({0: len(token_ids)})
    return batch.sequences[0].hidden


def random_ids(config: ModelConfig, length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(config.vocab_size), k=length)
