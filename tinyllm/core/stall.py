"""When a request must wait for its reader, and since when it does."""

from __future__ import annotations

from tinyllm.core.request import Request, RequestStatus

__all__ = ["has_room", "may_sample"]


def has_room(request: Request) -> bool:
    """Whether the request's stream takes what it would sample.

    One piece is enough, also for ``n`` answers: a step sends their tokens together. A preempted request waits
    for half the buffer, so that a slow reader does not have it recomputed for every single token.
    """
    credit = request.credit
    if credit is None or request.max_tokens == 0:
        return True
    if request.status is RequestStatus.PREEMPTED:
        return credit.available >= max(1, credit.capacity // 2)
    return credit.available >= 1


def may_sample(request: Request, now: float) -> bool:
    """Whether the request may be scheduled to sample; if not, it is marked as stalled since ``now``.

    The reader stores ``read`` and then tests ``stalled``; so here ``stalled`` is set and then ``read`` is
    looked at once more. Whoever is second sees the other, and no wake-up is lost.
    """
    credit = request.credit
    if credit is None or request.max_tokens == 0:
        return True
    if not has_room(request):
        credit.stalled = True
        if not has_room(request):
            if request.stalled_since is None or request.stalled_read != credit.read:
                request.stalled_since, request.stalled_read = now, credit.read
            return False
    if request.stalled_since is not None or credit.stalled:
        request.stalled_since, credit.stalled = None, False
    return True
