"""What is known once a model is loaded: `EngineInfo` for people, `LoadedModel` for the engine's own use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinyllm.metrics import EngineMetrics
from tinyllm.params import SamplingDefaults
from tinyllm.text.tokenizer import Tokenizer
from tinyllm.text.user_text import UserText

__all__ = ["ChatRenderer", "EngineInfo", "LoadedModel"]


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the engine really runs: every ``auto`` resolved."""

    model: str
    """What the user called it."""
    revision: str | None
    """The Hub's commit, or None."""
    architecture: str
    dtype: str
    kv_cache_dtype: str
    device: str
    attention_backend: str
    layers: str
    """``native``: all layers of a step in one call to the C kernels; ``torch``: operator by operator."""
    vocab_size: int
    """Token ids are below this."""
    max_model_len: int
    """Longest prompt plus answer, in tokens."""
    block_size: int
    """Tokens a KV block holds."""
    num_kv_blocks: int
    kv_cache_bytes: int
    weight_bytes: int
    load_seconds: float


class ChatRenderer(Protocol):
    """What the engine needs of chat templates (`tinyllm.text.chat_template.ChatTemplates` is one)."""

    def uses(self, variable: str) -> bool: ...  # noqa: D102

    def render(  # noqa: D102
        self, messages: Any, mark: Callable[[Any], Any] | None = None, /, *, tools: Any = None, **kwargs: Any
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """The immutable side of a loaded model: safe to read on any thread, and without a tensor in it."""

    info: EngineInfo
    tokenizer: Tokenizer | None
    """None where the model has no tokenizer: prompts are token ids then, and answers have no text."""
    chat_templates: ChatRenderer | None
    metrics: EngineMetrics
    sampling_defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    eos_token_ids: frozenset[int] = frozenset()
    user_text: UserText | None = field(init=False)
    """Keeps messages from spelling special tokens; None without a tokenizer."""

    def __post_init__(self) -> None:
        user_text = None if self.tokenizer is None else UserText(self.tokenizer)
        object.__setattr__(self, "user_text", user_text)
