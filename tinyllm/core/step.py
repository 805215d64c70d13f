"""What the scheduler asks of a step, and what the runner answers. No tensors here."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllm.core.request import Request

__all__ = [
    "ModelRunnerOutput",
    "RequestUpdate",
    "SampledToken",
    "ScheduledRequest",
    "SchedulerOutput",
    "TokenScores",
]


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """A request's part of a step: compute ``request.token_ids[start : start + num_new_tokens]``."""

    request: Request
    start: int
    num_new_tokens: int
    block_table: list[int]
    """Blocks for tokens ``0 : start + num_new_tokens``, in order; not to be changed."""
    samples: bool
    """Whether the last of these rows samples the next token."""


@dataclass(slots=True)
class SchedulerOutput:
    """One step's work, and the requests that ended while it was planned."""

    scheduled: list[ScheduledRequest] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    """Timed out or stalled too long: finished, blocks free, to be reported."""
    num_decodes: int = 0
    """How many of ``scheduled`` compute the one token that their answer waits for; these come first."""
    started: float = 0.0
    """When it was planned, by the scheduler's clock."""

    @property
    def num_scheduled_tokens(self) -> int:
        """Rows of the step's flat batch."""
        return sum(item.num_new_tokens for item in self.scheduled)


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Raw log-softmax at one position: of the token that stands there, and of the best others."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """``(token_id, logprob)``, best first."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of one request, or the fault that belongs to this request alone."""

    token_id: int
    scores: TokenScores | None = None
    error: BaseException | None = None


@dataclass(slots=True)
class ModelRunnerOutput:
    """What a step computed, by request id."""

    sampled: dict[str, SampledToken] = field(default_factory=dict)
    """For requests that sampled; one whose prompt could not be scored has its error here, too."""
    prompt_scores: dict[str, list[TokenScores]] = field(default_factory=dict)
    """For requests that `Request.wants_prompt_scores`: scores of the prompt tokens that this step's rows
    predict, from token ``start + 1`` on."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by part: ``build``, ``forward``, ``sample``."""


@dataclass(slots=True)
class RequestUpdate:
    """What a step brought for one request. ``request.status`` tells whether, and how, it finished."""

    request: Request
    token_id: int | None = None
    """The token that was sampled, now the last of ``request.token_ids``; None where none was."""
    scores: TokenScores | None = None
    """Of that token, if the sampler gave any."""
    prompt_scores: list[TokenScores] = field(default_factory=list)
    """Of the prompt's next tokens, in order and each once; its first token has none."""
    stop_reason: int | None = None
    """The stop token id that ended it; None for end-of-sequence and length."""
    error: BaseException | None = None
    """The fault that ended it (``FINISHED_ERROR``)."""
