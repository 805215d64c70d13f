"""`RequestQueue`: requests in order of service."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from tinyllm.core.integrity import require
from tinyllm.core.request import Request

__all__ = ["RequestQueue", "rank_of"]

_by_rank = attrgetter("rank")


def rank_of(request: Request, priority_ageing: float, number: int) -> tuple[float, int]:
    """Return a request's constant place in the order of service.

    A waiting request gains one step of priority for every ``priority_ageing`` seconds it has waited. All age
    alike, so the order of ``priority - waited / priority_ageing`` is at all times that of
    ``arrival_time + priority * priority_ageing``, and nothing starves: whoever arrives late enough is behind.
    ``number`` (of acceptance) decides between equals.
    """
    return (request.arrival_time + request.priority * priority_ageing, number)


class RequestQueue:
    """Requests sorted by ``rank``, and the sum of their prompts' lengths."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """First in service first. Not to be changed meanwhile; iterate over a list of it for that."""
        return iter(self._requests)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._requests)

    def add(self, request: Request) -> None:
        """Put the request in its place."""
        insort(self._requests, request, key=_by_rank)
        self.num_prompt_tokens += request.num_prompt_tokens

    def remove(self, request: Request) -> None:
        """Take out the request, which must be there."""
        index = bisect_left(self._requests, request.rank, key=_by_rank)
        del self._requests[index]
        self.num_prompt_tokens -= request.num_prompt_tokens

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless it is sorted and its count of tokens is right."""
        ranks = [request.rank for request in self._requests]
        require(ranks == sorted(set(ranks)), "the queue is out of order")
        tokens = sum(request.num_prompt_tokens for request in self._requests)
        require(tokens == self.num_prompt_tokens, "the queue's count of prompt tokens is wrong")
