"""`EngineConfig`: every option of the engine, with its default, meaning and range, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tinyllm.errors import ConfigError
from tinyllm.faults import first_fault

__all__ = ["DType", "EngineConfig"]

DType = Literal["auto", "float32", "bfloat16", "float16"]


def _none_or_at_least_one(value: float) -> float:
    if 0 < value < 1:
        raise ValueError("must be at least 1, or 0")
    return value


class EngineConfig(BaseModel):
    """Every option of the engine. Raises `ConfigError` on an unknown name or a wrong value.

    Sizes are in bytes, times in seconds, lengths in tokens.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # The model and where its files come from.
    model: str | None = None
    """Local directory, ``.gguf`` file or Hub id; None is the demo model, SmolLM2-135M-Instruct."""
    revision: str | None = None
    """Branch, tag or commit of a Hub model; pinned to a commit once, for all files."""
    hub_token: str | None = Field(default=None, repr=False)
    """Access token for the Hub; default: ``HF_TOKEN`` or the token saved by ``hf auth login``."""
    cache_dir: Path | None = None
    """Where fetched and converted models are kept; default: the user's cache directory."""
    offline: bool = False
    """Never use the network; also set by ``HF_HUB_OFFLINE=1``."""
    chat_template: str | None = None
    """A Jinja file, or the template itself, in place of the model's own."""
    progress: bool = True
    """Show progress bars while fetching and loading, where standard error is a terminal."""

    # How it is run.
    dtype: DType = "auto"
    """Of weights and computation; auto is the checkpoint's own."""
    kv_cache_dtype: DType = "auto"
    """Of stored keys and values; auto is the computation's."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    """auto is cuda where there is one, else cpu."""
    attention_backend: str = "auto"
    """auto is the fastest that passes its check here; ``reference`` is the readable one."""
    num_threads: int | None = Field(default=None, ge=1, le=1024)
    """Torch's threads; default: the machine's physical cores."""

    # What fits.
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt plus answer; default: the model's context, or less where the KV cache is smaller."""
    max_num_seqs: int = Field(default=32, ge=1, le=65_536)
    """Most answers computed at once."""
    max_num_batched_tokens: int = Field(default=512, ge=1, le=1_048_576)
    """Most tokens computed in one step, answers' and prompts' together."""
    max_num_partial_prefills: int = Field(default=4, ge=1)
    """Most prompts whose computation is spread over several steps at the same time."""
    long_prefill_threshold: int = Field(default=0, ge=0)
    """Prompts with more tokens left than this are long and leave room for short ones; 0: a step's budget."""
    max_prefill_slowdown: Annotated[float, AfterValidator(_none_or_at_least_one)] = Field(
        default=2.5, ge=0, le=1000
    )
    """How many times as long prompts make a step that also has answers, 1 or more. So much if all prompts are
    long and there are four answers or more for each; else prompts may add twice as much time. 0: no limit,
    max_step_seconds is not heeded, and long prompts do not stand aside for others."""
    max_step_seconds: float = Field(default=0.08, ge=0, le=1000)
    """Prompts may make a step with answers last this long even where max_prefill_slowdown allows less, unless
    all prompts are long and there are four answers or more for each."""
    prefill_mode: Literal["chunked", "one-shot"] = "chunked"
    """one-shot computes each prompt in a single step, for comparison."""
    max_waiting_requests: int = Field(default=256, ge=0)
    """Most requests accepted but not yet running; more are refused."""
    max_waiting_tokens: int = Field(default=1_000_000, ge=1)
    """Most prompt tokens of requests accepted but not yet running."""

    # The KV cache.
    block_size: int = Field(default=16, ge=1, le=1024)
    """Tokens a KV block holds."""
    kv_cache_bytes: int | None = Field(default=None, ge=1)
    """Memory for keys and values; default: max_model_len x max_num_seqs, at most a quarter of free memory."""
    kv_cache_mode: Literal["paged", "contiguous"] = "paged"
    """contiguous reserves max_model_len tokens for each answer, for comparison."""
    enable_prefix_caching: bool = True
    """Reuse the KV of equal prompt beginnings."""
    prefix_cache_bytes: int | None = Field(default=None, ge=0)
    """Most memory that cached blocks may hold; default: all of the KV cache that is not in use."""
    prefix_cache_max_blocks: int | None = Field(default=None, ge=0)
    """Most cached blocks."""

    # Streams and life cycle.
    stream_buffer_size: int = Field(default=64, ge=1)
    """Pieces a stream holds for its reader before the request pauses."""
    stall_timeout: float = Field(default=60.0, gt=0)
    """How long a request waits for a reader that does not read before it ends with `SlowConsumerError`."""
    shutdown_timeout: float = Field(default=30.0, ge=0)
    """How long `AsyncEngine.drain` lets running requests finish."""
    priority_ageing: float = Field(default=10.0, gt=0)
    """Waiting this long counts as much as one step of ``priority``, so that nothing starves."""
    status_log_interval: float = Field(default=10.0, ge=0)
    """Seconds between one-line status logs while there is work; 0 is never."""
    check_integrity: bool = False
    """Check the scheduler's and the block pool's books after every step (slow; for tests)."""

    if not TYPE_CHECKING:  # type checkers see pydantic's own signature, with the fields' names and types

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                kind = type(self)
                secret = [name for name, field in kind.model_fields.items() if not field.repr]
                raise ConfigError(f"{kind.__name__}: {first_fault(error, secret=secret)[1]}") from None

    @classmethod
    def combine(cls, config: EngineConfig | None, options: Mapping[str, Any]) -> EngineConfig:
        """Return ``config`` (default: all defaults) with ``options`` put over it, checked as a whole."""
        if config is None:
            return cls(**options)
        if not isinstance(config, EngineConfig):
            raise ConfigError("config must be an EngineConfig; the model's name goes into model=...")
        return cls(**{**dict(config), **options}) if options else config
