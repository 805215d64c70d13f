"""What crosses between the two sides: a `Submission` goes in, `Delivery` after `Delivery` comes out."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from tinyllm.core.request import StreamCredit
from tinyllm.errors import TinyLLMError
from tinyllm.outputs import RequestOutput, TokenLogprob
from tinyllm.params import SamplingParams

__all__ = ["Delivery", "RequestOptions", "Submission"]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Everything of an accepted request but its prompt; times are of the engine's clock."""

    request_id: str
    params: SamplingParams
    arrival_time: float
    priority: float = 0
    timeout: float | None = None
    queue_timeout: float | None = None
    cache_salt: str = ""
    credit: StreamCredit = field(default_factory=lambda: StreamCredit(sys.maxsize))


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked and accepted request. Times are of the engine's clock, in seconds."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    """Resolved: every sampling field has a value."""
    max_tokens: int
    """Output tokens of each answer, cut to the context."""
    arrival_time: float
    priority: float = 0
    deadline: float | None = None
    queue_deadline: float | None = None
    cache_salt: str = ""
    bad_word_token_ids: tuple[tuple[int, ...], ...] = ()
    credit: StreamCredit = field(default_factory=lambda: StreamCredit(sys.maxsize))
    """Room in its stream; by default without end."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one step has for one request. Exactly one delivery of an accepted request has ``finished``."""

    request_id: str
    pieces: tuple[RequestOutput, ...] = ()
    """At most one for each answer; together they are one item of the stream, and cost one credit."""
    started: bool = False
    """It runs since this step; said once."""
    finished: bool = False
    error: TinyLLMError | None = None
    """Why it ended abnormally; only with ``finished``."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    """With the first pieces, if asked for."""
