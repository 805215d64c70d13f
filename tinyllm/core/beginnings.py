"""`Beginnings`: a request waits while another computes what it could then start with."""

from __future__ import annotations

from collections.abc import Iterable

from tinyllm.core.admission import Admission
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request, RequestStatus

__all__ = ["Beginnings"]


class Beginnings:
    """Keeps requests that come together from each computing the beginning they share.

    One waits only for a running one of earlier rank, for at least half of what it has left to compute, and
    once: if the blocks are gone when they should be there, it computes them itself. It keeps its turn, as its
    seat and its blocks are kept free.
    """

    def __init__(self, kv: KVCacheManager, admission: Admission) -> None:
        self._kv, self._admission = kv, admission
        self._prompts: list[Request] = []
        self.num_awaiting = 0
        """Requests that wait in this step."""
        self.num_blocks = 0
        """Blocks that those will need beside the shared ones."""

    def begin_step(self, prompts: Iterable[Request]) -> None:
        """Forget the last step; ``prompts`` are running ones that are being computed."""
        self._prompts = list(prompts)
        self.num_awaiting = self.num_blocks = 0

    def note_started(self, request: Request) -> None:
        """Take in that another prompt is being computed in this step."""
        self._prompts.append(request)

    def are_awaited(self, request: Request) -> bool:
        """Whether another computes blocks that the waiting request lacks. Call it once a step, in rank."""
        if request.awaited is None and request.may_await:
            request.awaited = self._find(request)
            request.may_await = request.awaited is None
        if request.awaited is None:
            return False
        other, num_shared = request.awaited
        if not _is_computing(other, num_shared):
            request.awaited = None
            return False
        self.num_awaiting += 1
        self.num_blocks += self._kv.blocks_for(request.num_tokens) - num_shared // self._kv.block_size
        return True

    def _find(self, request: Request) -> tuple[Request, int] | None:
        for other in self._prompts:
            if other.rank > request.rank or self._admission.is_long(other) > self._admission.is_long(request):
                continue
            shared = self._kv.num_shared_tokens(request, other)
            saved = shared - other.num_computed_tokens
            if 2 * saved < request.num_tokens - other.num_computed_tokens:
                continue
            if not self._kv.has_computed_blocks(request, shared // self._kv.block_size):
                return other, shared
        return None


def _is_computing(other: Request, num_tokens: int) -> bool:
    return other.status is RequestStatus.RUNNING and other.num_computed_tokens < num_tokens
