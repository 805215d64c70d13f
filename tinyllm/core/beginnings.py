"""`Beginnings`: a request waits while another computes what it could then start with."""

from __future__ import annotations

from collections.abc import Iterable

from tinyllm.core.admission import Admission
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request, RequestStatus

__all__ = ["Beginnings"]


class Beginnings:
    """Keeps requests that come together from each computing the beginning they share.

    One waits only for a running one of earlier rank, for at least half of what it has left to compute, and in
    vain only once: if the blocks are gone when they have been computed, it computes them itself. It keeps its
    turn, as its seat and its blocks are kept free.
    """

    def __init__(self, kv: KVCacheManager, admission: Admission) -> None:
        self._kv, self._admission = kv, admission
        self._prompts: list[Request] = []
        self.waiting: list[Request] = []
        """Those that wait in this step, in rank."""
        self.num_blocks = 0
        """Blocks to keep for them, beside the shared ones."""

    def begin_step(self, prompts: Iterable[Request]) -> None:
        """Forget the last step; ``prompts`` are running ones that are being computed."""
        self._prompts = list(prompts)
        self.waiting = []
        self.num_blocks = 0

    def note_started(self, request: Request) -> None:
        """Take in that another prompt is being computed in this step."""
        self._prompts.append(request)

    def are_awaited(self, request: Request) -> bool:
        """Whether another computes blocks that the waiting request lacks. Call it once a step, in rank."""
        if request.awaited is not None and not _is_computing(*request.awaited):
            other, num_shared = request.awaited
            if other.num_computed_tokens >= num_shared:
                num_blocks = num_shared // self._kv.block_size
                request.may_await = self._kv.has_computed_blocks(request, num_blocks)
            request.awaited = None
        if request.awaited is None and request.may_await:
            request.awaited = self._find(request)
        if request.awaited is None:
            return False
        self.waiting.append(request)
        self.num_blocks += self._admission.num_blocks_to_start(request)
        self.num_blocks -= request.awaited[1] // self._kv.block_size
        return True

    def _find(self, request: Request) -> tuple[Request, int] | None:
        """Return the one from which most can be taken, and how many tokens."""
        found: tuple[Request, int] | None = None
        for other in self._prompts:
            num_tokens = self._num_worth_awaiting(request, other)
            if num_tokens > (found[1] if found else 0):
                found = other, num_tokens
        return found

    def _num_worth_awaiting(self, request: Request, other: Request) -> int:
        """Return how many tokens they share; 0 where the request does better without waiting for them."""
        if other.rank > request.rank:
            return 0
        if self._admission.is_long(other) and not self._admission.is_long(request):
            return 0
        shared = self._kv.num_shared_tokens(request, other)
        if not _saves_half(request, shared, other.num_computed_tokens):
            return 0
        there = request.num_tokens - self._admission.num_uncached_tokens(request)
        return shared if _saves_half(request, shared, max(there, other.num_computed_tokens)) else 0


def _saves_half(request: Request, num_shared: int, num_computed: int) -> bool:
    """Whether at least half of what is left to compute is shared."""
    return 2 * (num_shared - num_computed) >= request.num_tokens - num_computed


def _is_computing(other: Request, num_tokens: int) -> bool:
    return other.status is RequestStatus.RUNNING and other.num_computed_tokens < num_tokens
