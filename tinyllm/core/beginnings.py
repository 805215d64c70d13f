"""`Beginnings`: a request waits while another computes what it could then start with."""

from __future__ import annotations

from collections.abc import Iterable

from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request, RequestStatus

__all__ = ["Beginnings"]


class Beginnings:
    """Keeps requests that come together from each computing the beginning they share.

    One that waits comes no later for it: it would have to compute the same tokens itself. Whoever it waits
    for runs, so there is no circle.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv

    def are_awaited(self, request: Request, prompts: Iterable[Request]) -> bool:
        """Whether one of the running ``prompts`` is computing blocks that the waiting request lacks."""
        if request.awaited is None or not _is_computing(*request.awaited):
            request.awaited = self._find(request, prompts)
        return request.awaited is not None

    def _find(self, request: Request, prompts: Iterable[Request]) -> tuple[Request, int] | None:
        for other in prompts:
            shared = self._kv.num_shared_tokens(request, other)
            if _is_computing(other, shared) and not self._kv.has_computed_blocks(
                request, shared // self._kv.block_size
            ):
                return other, shared
        return None


def _is_computing(other: Request, num_tokens: int) -> bool:
    return other.status is RequestStatus.RUNNING and other.num_computed_tokens < num_tokens
