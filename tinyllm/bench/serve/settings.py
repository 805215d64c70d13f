"""The options of ``tinyllm bench serve``: whom to ask, what, and when. Each field is a flag."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tinyllm.errors import ConfigError
from tinyllm.faults import first_fault

__all__ = ["ArrivalOptions", "DatasetOptions", "Options", "ServerOptions"]

Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Options(BaseModel):
    """A group of flags. Raises `ConfigError` that names the flag."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                name, _, fault = first_fault(error)[1].partition(":")
                raise ConfigError(f"--{name.replace('_', '-')}:{fault}") from None


class ServerOptions(Options):
    """Whom to ask, and what every request has in common."""

    base_url: str = "http://127.0.0.1:8000"
    """Of the server, with or without ``/v1``."""
    backend: Literal["openai", "openai-chat", "vllm"] = "openai"
    """``openai`` asks for completions, as ``vllm`` does; ``openai-chat`` for chat."""
    endpoint: str | None = None
    """Path of the requests, if it is not ``/v1/completions`` or ``/v1/chat/completions``."""
    model: str | None = None
    """Name of the model; without it the first that ``/v1/models`` lists."""
    api_key_file: Path | None = None
    """File whose first line is the API key; without it the variable ``OPENAI_API_KEY``, if set."""
    header: Sequence[str] = ()
    """``NAME=VALUE``, sent with each request; may be given several times."""
    extra_body: str | None = None
    """JSON object whose fields go into each request; null takes a field away."""
    ignore_eos: bool = False
    """Ask for answers that do not end early, so that each has exactly the tokens asked for."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Of sampling."""
    request_timeout_sec: Annotated[float, Field(gt=0)] = 600.0
    """Seconds after which a request has failed."""
    ready_check_timeout_sec: Seconds = 600.0
    """Seconds to wait until the server answers a short request; 0 tries once."""


class DatasetOptions(Options):
    """What to ask. A length is in tokens."""

    dataset_name: Literal[
        "random", "prefix_repetition", "mixed", "multi-turn", "burstgpt", "custom", "sharegpt", "oasst1"
    ] = "random"
    """``random``: random prompts. ``prefix_repetition``: groups that share a beginning. ``mixed``: several
    kinds at once. ``multi-turn``: conversations, each turn sent after the answer and containing it.
    ``burstgpt``: lengths and arrivals like a public trace's, or that trace itself. The others: a file's."""
    dataset_path: Path | None = None
    """File of a dataset: JSONL, JSON or CSV, also as ``.gz``."""
    num_prompts: Positive = 100
    """Conversations to hold; but for several turns, that is requests. A file may have fewer."""
    seed: int = 0
    """Of prompts and arrivals. A server that has seen a seed before may have its prompts in its cache."""
    tokenizer: str | None = None
    """Model directory, ``.gguf`` file or Hub id whose tokenizer counts; without it ``/tokenize`` does."""
    vocab_size: Positive | None = None
    """Make prompts of token ids below this instead of text; for completions, and needs no tokenizer."""
    long_from: Positive = 512
    """A prompt of at least so many tokens is labelled ``long``, a shorter one ``short``."""
    num_warmups: Natural = 0
    """Requests sent before, and not measured; further ones of the same dataset."""
    random_input_len: Positive = 1024
    """Length of a random prompt. With chat, the template's own tokens come on top."""
    random_output_len: Positive = 128
    """Length of an answer to it."""
    random_range_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Lengths are uniform from (1 - ratio) to (1 + ratio) times that; 0 is fixed lengths."""
    random_prefix_len: Natural = 0
    """Tokens at the beginning that all random prompts share, on top."""
    prefix_repetition_prefix_len: Positive = 256
    """Length of a shared beginning."""
    prefix_repetition_suffix_len: Positive = 256
    """Length of what each prompt has of its own."""
    prefix_repetition_num_prefixes: Positive = 10
    """Different beginnings."""
    prefix_repetition_output_len: Positive = 128
    """Length of an answer."""
    mix: Sequence[str] = ()
    """A kind of ``mixed``, given once for each: ``LABEL=WEIGHT:PROMPTxOUTPUT``, such as ``short=9:64x64``."""
    turns: Positive | None = None
    """Turns of ``multi-turn`` (4 without it), or the most that are taken of a conversation in a file (1)."""
    output_len: Positive | None = None
    """Length of answers, instead of what the file says."""
    max_input_len: Positive = 1024
    """Longest prompt: ``burstgpt`` clips to it, ``sharegpt`` and ``oasst1`` leave longer ones out."""
    max_output_len: Positive = 1024
    """Longest answer: longer ones are clipped."""
    window: Natural = 0
    """Which part of a ``burstgpt`` trace: window K comes after K others of this size, warm-ups included."""
    burstgpt_burstiness: Annotated[float, Field(gt=0)] = 0.5
    """Shape of the gamma distribution of the gaps, without a file; below 1 is bursty."""

    @property
    def path(self) -> Path:
        """The file of a dataset that comes from one. Raises `ConfigError` if none is given."""
        if self.dataset_path is None:
            raise ConfigError(f"--dataset-name {self.dataset_name} needs --dataset-path")
        return self.dataset_path

    @property
    def has_one_window(self) -> bool:
        """Whether another window would have requests of the first: a file is not cut, but drawn from."""
        return self.dataset_name in _FROM_FILES

    def check(self) -> None:
        """Raise `ConfigError` for an option that this dataset would ignore, or that it lacks."""
        for name in sorted(self.model_fields_set - _COMMON - _USED[self.dataset_name]):
            raise ConfigError(
                f"--{name.replace('_', '-')} means nothing to --dataset-name {self.dataset_name}"
            )
        if self.dataset_name in _FROM_FILES:
            _ = self.path
        if self.dataset_name == "mixed" and not self.mix:
            raise ConfigError(
                "--dataset-name mixed needs --mix, such as --mix short=9:64x64 --mix long=1:2048x16"
            )
        if self.dataset_path is not None and "burstgpt_burstiness" in self.model_fields_set:
            raise ConfigError("--burstgpt-burstiness means nothing to a trace from a file")
        if self.vocab_size and self.tokenizer:
            raise ConfigError("give --tokenizer for prompts of text or --vocab-size for token ids, not both")


class ArrivalOptions(Options):
    """When to ask."""

    request_rate: Annotated[float, Field(gt=0)] = math.inf
    """Requests a second, sent by the clock whether or not the server keeps up; ``inf`` sends all at once, or
    as many as ``max_concurrency`` lets."""
    burstiness: Annotated[float, Field(gt=0)] = 1.0
    """Shape of the gamma distribution of the gaps: 1 is a Poisson process, less comes in bursts."""
    max_concurrency: Positive | None = None
    """Most requests in flight. Without a rate, a closed loop: the next is sent when one is answered."""
    ramp_up_strategy: Literal["linear", "exponential"] | None = None
    """Let the rate go from ``ramp_up_start_rps`` to ``ramp_up_end_rps``."""
    ramp_up_start_rps: Seconds = 0.0
    """Requests a second at the beginning of a ramp."""
    ramp_up_end_rps: Seconds = 0.0
    """Requests a second at the end of a ramp."""
    replay_timestamps: bool = False
    """Send requests when the dataset's own timestamps say; with ``request_rate``, stretched to that rate."""
    time_scale: Annotated[float, Field(gt=0)] = 1.0
    """Factor on the timestamps' gaps: 2 takes twice as long."""


_COMMON: Final = frozenset({"dataset_name", "num_prompts", "seed", "num_warmups"})
_FROM_FILES: Final = ("custom", "sharegpt", "oasst1")
_MADE: Final = frozenset({"tokenizer", "vocab_size"})
_TALKS: Final = frozenset(
    {"dataset_path", "turns", "output_len", "max_input_len", "max_output_len", "tokenizer", "long_from"}
)


def _named(prefix: str) -> frozenset[str]:
    return frozenset(name for name in DatasetOptions.model_fields if name.startswith(prefix))


_USED: Final = {
    "random": _named("random_") | _MADE | {"long_from"},
    "prefix_repetition": _named("prefix_repetition_") | _MADE | {"long_from"},
    "mixed": _MADE | {"mix"},
    "multi-turn": _named("random_") | {"turns", "tokenizer"},
    "burstgpt": _MADE
    | {"dataset_path", "window", "burstgpt_burstiness", "max_input_len", "max_output_len", "long_from"},
    "custom": frozenset({"dataset_path", "output_len"}),
    "sharegpt": _TALKS,
    "oasst1": _TALKS,
}
"""Options that each dataset heeds beside the common ones."""
