"""`Admission`: whether a waiting request may start beside those that run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request
from tinyllm.core.request_queue import RequestQueue
from tinyllm.core.scheduler_config import SchedulerConfig

__all__ = ["MAX_PREEMPTIONS", "Admission"]

MAX_PREEMPTIONS: Final = 4
"""After so many, a request only runs when there is room for it to finish."""


class Admission:
    """The rules of admission; all but `start` only look.

    They keep requests from being preempted again and again: one starts when there are blocks for all tokens
    it has, and some to spare.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, running: RequestQueue) -> None:
        self.kv, self.running = kv, running
        self.max_running = min(config.max_num_seqs, config.max_num_batched_tokens)
        """With a token of the budget for each running request, none of them waits for the others."""
        self.long = config.long_prefill_threshold or config.max_num_batched_tokens
        """Prompts with more tokens left than this are long."""
        self._max_long = max(1, config.max_num_partial_prefills - 1)

    def start(self, request: Request, *, num_seats_kept: int = 0, num_blocks_kept: int = 0) -> bool:
        """Give the request blocks for all its tokens; False, and nothing done, if it must wait.

        Seats and blocks that are kept for others stay free. Sets ``num_computed_tokens`` to what the cached
        blocks hold.
        """
        if len(self.running) + num_seats_kept >= self.max_running or not self._keeps_promises(request):
            return False
        headroom = self._headroom(request) + num_blocks_kept
        if headroom >= self.kv.num_free_blocks:  # its last token never comes from the cache
            return False
        computed = self.kv.get_computed_blocks(request)
        num_computed = len(computed) * self.kv.block_size
        if not self.kv.allocate_slots(request, request.num_tokens - num_computed, computed, reserve=headroom):
            return False
        request.num_computed_tokens = num_computed
        return True

    def waits_for_leader(self, request: Request) -> bool:
        """Whether the prompt is being computed by another answer to it, whose blocks this one will share."""
        leader = request.leader
        return (
            leader is not None
            and leader.num_computed_tokens < leader.num_prompt_tokens
            and not leader.status.is_finished
        )

    def is_long(self, request: Request) -> bool:
        """Whether a prompt is long as a whole: more than this remained of it when it was started."""
        return request.num_tokens - request.num_cached_tokens > self.long

    def leaves_room(self, request: Request, prefills: Sequence[Request]) -> bool:
        """Whether a short prompt could still start beside these and this one: long ones leave one place."""
        if request.num_tokens <= self.long:
            return True
        if sum(map(self.is_long, prefills)) < self._max_long:
            return True
        return self.kv.has_computed_blocks(request, self.kv.blocks_for(request.num_tokens - self.long))

    def num_uncached_tokens(self, request: Request) -> int:
        """Return how many of a waiting request's tokens would have to be computed."""
        return request.num_tokens - len(self.kv.get_computed_blocks(request)) * self.kv.block_size

    def most_blocks(self, request: Request) -> int:
        """Return the number of blocks the request can ever need."""
        return self.kv.blocks_for(request.num_prompt_tokens + request.max_tokens)

    def num_blocks_to_start(self, request: Request) -> int:
        """Return the blocks of all its tokens, and those it wants to have to spare."""
        return self.kv.blocks_for(request.num_tokens) + self._spare(request)

    def _spare(self, request: Request) -> int:
        """Return one block for itself and each time it was preempted, but no more than it can still need."""
        needed = self.most_blocks(request) - self.kv.blocks_for(request.num_tokens)
        return min(1 + request.num_preemptions, needed)

    def _headroom(self, request: Request) -> int:
        """Return the blocks to leave free beside the request's own.

        One for each running request and itself, and one more for each time it was preempted; but never more
        than they can still need.
        """
        each = 1 + request.num_preemptions
        headroom = self._spare(request)
        for other in self.running:
            headroom += min(each, self.most_blocks(other) - len(self.kv.block_table(other)))
        return headroom

    def _keeps_promises(self, request: Request) -> bool:
        """Whether requests that were preempted `MAX_PREEMPTIONS` times can finish with this one running.

        Only requests of earlier rank take blocks from them, so it is enough that all up to the last of them
        fit together. It follows that they are not preempted again, unless they stall.
        """
        promised = [other for other in self.running if other.num_preemptions >= MAX_PREEMPTIONS]
        if request.num_preemptions >= MAX_PREEMPTIONS:
            promised.append(request)
        last = max((other.rank for other in promised), default=None)
        if last is None or request.rank > last:
            return True
        together = sum(self.most_blocks(other) for other in self.running if other.rank <= last)
        return together + self.most_blocks(request) <= self.kv.num_blocks
