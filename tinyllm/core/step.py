"""What the scheduler asks of a step, and what the runner answers. No tensors here."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinyllm.core.request import Request

__all__ = ["ModelRunnerOutput", "SampledToken", "ScheduledRequest", "SchedulerOutput", "TokenScores"]


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
    prompt_scores: dict[str, list[TokenScores]] = field(default_factory=dict)
    """For requests with ``prompt_logprobs``: scores of the prompt tokens that this step's rows predict."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by part: ``build``, ``forward``, ``sample``."""
