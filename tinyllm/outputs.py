"""What a request gives back: `RequestOutput` pieces while it runs, one `GenerationResult` in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tinyllm.params import SamplingParams

__all__ = [
    "CompletionOutput",
    "FinishReason",
    "GenerationResult",
    "RequestMetrics",
    "RequestOutput",
    "TokenLogprob",
    "TopLogprob",
    "Usage",
]


class FinishReason(StrEnum):
    """Why an answer ended normally. Abnormal ends raise an error instead."""

    STOP = "stop"
    """End-of-sequence token, stop token or stop string."""
    LENGTH = "length"
    """``max_tokens`` or the end of the context."""


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position."""

    token_id: int
    token: str
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob(TopLogprob):
    """The token that was chosen (or, in a prompt, given), and the most likely alternatives, best first.

    ``token`` is the token's own text, in which a broken character shows as U+FFFD; ``bytes`` is exact.
    ``logprob`` is the raw log-softmax of the model's logits, before penalties and temperature.
    """

    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of one answer, in seconds; None where the request did not get that far."""

    queued: float | None = None
    """From arrival until it was first scheduled."""
    prefill: float | None = None
    """From first scheduled until the first token."""
    time_to_first_token: float | None = None
    """From arrival until the first token."""
    mean_inter_token: float | None = None
    """Mean gap between tokens after the first."""
    total: float | None = None
    """From arrival until the end."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One piece of one answer: what a step added.

    ``text`` and ``token_ids`` are deltas: concatenated over an answer they are the whole of it. A piece may
    have tokens and no text (a character not complete yet, or text that could be a stop string) and its text
    may belong to earlier tokens. ``finish_reason`` is set on the last piece of each answer, and only there.
    """

    request_id: str
    index: int = 0
    """Which of ``n`` answers."""
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One entry for each of ``token_ids``, if asked for."""
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and length."""
    metrics: RequestMetrics | None = None
    """On the last piece."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request; the prompt counts once, answers are summed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    metrics: RequestMetrics


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished request: its answers, and what was really used to make them.

    The attributes ``text``, ``token_ids``, ``finish_reason``, ``logprobs`` and ``metrics`` are those of the
    first answer.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    """The effective values: the request's own, else the model's defaults, else neutral."""
    choices: tuple[CompletionOutput, ...]
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = field(default=None)

    @property
    def text(self) -> str:
        """Text of the first answer."""
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Token ids of the first answer."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Finish reason of the first answer."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """Log probabilities of the first answer, if asked for."""
        return self.choices[0].logprobs

    @property
    def metrics(self) -> RequestMetrics:
        """Times of the first answer."""
        return self.choices[0].metrics
