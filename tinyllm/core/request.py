"""`Request`: one sequence, from submission to its end, as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from tinyllm.params import SamplingParams

__all__ = ["Request", "RequestStatus", "StreamCredit"]


class RequestStatus(Enum):
    """Where a request is in its life. Every ``FINISHED_*`` is final."""

    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    """End-of-sequence, stop token or stop string."""
    FINISHED_LENGTH = auto()
    """``max_tokens`` or the end of the context."""
    FINISHED_ABORTED = auto()
    FINISHED_TIMEOUT = auto()
    FINISHED_STALLED = auto()
    """Its reader did not read for ``stall_timeout``."""
    FINISHED_ERROR = auto()
    """A fault of this request alone."""

    @property
    def is_finished(self) -> bool:
        """Whether this status is final."""
        return self.name.startswith("FINISHED")


@dataclass(slots=True)
class StreamCredit:
    """Room left in the stream that a request feeds: ``capacity - (sent - read)``.

    Two plain ints with one writer each, so nothing is locked: the executor thread counts ``sent``, the
    reader counts ``read``. ``stalled`` is set by the executor thread before it looks at ``read`` a last time,
    and tells the reader that its next read must wake that thread.
    """

    capacity: int
    sent: int = 0
    read: int = 0
    stalled: bool = False

    @property
    def available(self) -> int:
        """Pieces that may still be sent."""
        return self.capacity - (self.sent - self.read)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """One sequence. ``n`` answers to one prompt are n requests that share a ``leader`` and a stream.

    The scheduler lets ``num_computed_tokens`` (KV is stored) catch up with ``num_tokens`` (prompt and
    output known so far); when they would be equal, the step samples the next token. Times are of the
    scheduler's clock, in seconds.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    """Resolved: every sampling field has a value."""
    max_tokens: int
    """Output tokens after which it ends, the end of the context included."""
    eos_token_ids: frozenset[int]
    arrival_time: float
    priority: float = 0
    """Smaller is sooner."""
    deadline: float | None = None
    """When it ends with a timeout, wherever it is."""
    queue_deadline: float | None = None
    """When it ends with a timeout if it never ran."""
    cache_salt: str = ""
    """Namespace of the prefix cache: only requests with the same salt share blocks."""
    bad_word_token_ids: tuple[tuple[int, ...], ...] = ()
    """``params.bad_words`` as token ids: the last of each is not sampled where the output ends with
    the rest."""
    index: int = 0
    """Which of ``n`` answers."""
    leader: Request | None = None
    """Answer 0 of the same prompt, whose prompt blocks this request waits for and shares."""
    credit: StreamCredit | None = None
    """None: nobody reads piece by piece, so it never stalls."""

    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(init=False)
    """Prompt and output."""
    num_prompt_tokens: int = field(init=False)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache when it was first scheduled."""
    num_preemptions: int = 0
    num_prompt_scores: int = 0
    """Prompt tokens, from the second on, whose scores were reported (of ``prompt_logprobs``)."""
    stalled_since: float | None = None
    """Since when it waits for its reader; None where it does not."""
    stalled_read: int = 0
    """``credit.read`` at that time: when it moves, the wait starts anew."""
    rank: tuple[float, int] = (0.0, 0)
    """Order of service, smaller first: arrival made earlier or later by priority, then a running number.
    Set by the scheduler, and constant."""
    awaited: tuple[Request, int] | None = None
    """Who is computing so many tokens that this one, which waits, will share; see `Beginnings`."""
    may_await: bool = True
    """It has not waited for another's tokens in vain yet."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Hashes of its full blocks that were needed so far: a memo of the KV cache manager."""
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.num_prompt_tokens = len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far, prompt and output."""
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        """The tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def wants_prompt_scores(self) -> bool:
        """Whether the rows of its prompt are still to be scored. Answers share those of their leader."""
        return (
            self.params.prompt_logprobs is not None
            and self.leader is None
            and self.num_prompt_scores < self.num_prompt_tokens - 1
        )
