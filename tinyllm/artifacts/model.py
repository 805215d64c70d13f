"""The one typed result of this room: what a model is, whatever its files look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tinyllm.params import SamplingDefaults

if TYPE_CHECKING:
    import torch

__all__ = [
    "GGUFVocabulary",
    "ModelArtifacts",
    "ModelConfig",
    "RopeConfig",
    "TensorInfo",
    "TokenizerSource",
    "WeightSource",
]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: the base and how it is stretched.

    Fields after ``factor`` belong to the kinds in their comments and are None elsewhere.
    """

    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    theta: float = 10_000.0
    factor: float = 1.0
    original_max_position_embeddings: int | None = None  # llama3, yarn
    low_freq_factor: float | None = None  # llama3
    high_freq_factor: float | None = None  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn
    mscale: float | None = None  # yarn
    mscale_all_dim: float | None = None  # yarn
    truncate: bool = True  # yarn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape and options of a decoder-only transformer, with every default filled in."""

    architecture: str
    """Class name as in ``architectures``, such as ``LlamaForCausalLM``."""
    vocab_size: int
    """Rows of the embedding table; may be more than the tokenizer knows (padding)."""
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    """Whether q, k and v projections have a bias."""
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Whether q and k are RMS-normalised per head (Qwen3)."""
    tie_word_embeddings: bool
    dtype: str
    """The checkpoint's own: ``float32``, ``bfloat16`` or ``float16``."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies, and in what form. ``shape`` is the logical one, as PyTorch has it."""

    name: str
    """The Hugging Face name, such as ``model.layers.0.self_attn.q_proj.weight``, also for GGUF."""
    dtype: str
    """As stored: ``F32``, ``BF16``, ``F16``, ``Q4_1``, ..."""
    shape: tuple[int, ...]
    file: str
    """Name of the file inside the model."""
    nbytes: int


class WeightSource(Protocol):
    """Tensors of a checkpoint, checked against its config, and read one at a time."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor the model needs, by name."""
        ...

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Read tensor ``name`` into ``out`` (same shape, any float dtype), converting or dequantising.

        Reads in slices: never holds a second whole copy. Raises `CheckpointError` when the file is not what
        it was when it was checked.
        """
        ...


@dataclass(frozen=True, slots=True)
class GGUFVocabulary:
    """A tokenizer as GGUF metadata describes it (``tokenizer.ggml.*``)."""

    model: str
    """``gpt2`` (byte-level BPE) or ``llama`` (SentencePiece)."""
    pre: str
    """Name of the pre-tokenizer's rules, such as ``smollm`` or ``qwen2``."""
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[str, ...]
    add_space_prefix: bool


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """Where the tokenizer comes from; the text room reads it.

    ``tokenizer.json`` and ``sentencepiece`` have a ``path``, ``gguf`` has a ``vocabulary``. ``config`` is
    the content of ``tokenizer_config.json`` (special tokens, ``add_bos_token``), or its equal from GGUF.
    """

    kind: Literal["tokenizer.json", "sentencepiece", "gguf"]
    path: Path | None
    config: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: GGUFVocabulary | None = None


@dataclass(frozen=True, slots=True)
class ModelArtifacts:
    """A model whose files have been found and checked. Nothing is loaded yet."""

    name: str
    """What the user called it; never a path that leads elsewhere."""
    kind: Literal["directory", "hub", "gguf", "demo"]
    revision: str | None
    """The Hub's commit, or None."""
    config: ModelConfig
    weights: WeightSource
    tokenizer: TokenizerSource | None
    """None when the directory has no tokenizer: token ids still work."""
    chat_templates: Mapping[str, str]
    """Jinja sources by name; ``default`` is the ordinary one, ``tool_use`` may be there. May be empty."""
    sampling_defaults: SamplingDefaults
    eos_token_ids: tuple[int, ...]
    """Union of config.json and generation_config.json; the tokenizer's own comes on top."""
    fingerprint: str
    """SHA-256 over config and weight headers (hex): which model this is, for cache keys."""
