"""When a request has waited too long."""

from __future__ import annotations

import math

from tinyllm.core.request import Request, RequestStatus

__all__ = ["due_time", "timeout_status"]


def due_time(request: Request, stall_timeout: float) -> float:
    """Return when the request times out: as a whole, in the queue, or waiting for its reader; else infinity.

    An answer whose leader has run is not in the queue any more: its prompt is being worked on.
    """
    due = math.inf if request.deadline is None else request.deadline
    if request.queue_deadline is not None and (request.leader or request).first_scheduled_time is None:
        due = min(due, request.queue_deadline)
    if request.stalled_since is not None:
        due = min(due, request.stalled_since + stall_timeout)
    return due


def timeout_status(request: Request, stall_timeout: float, now: float) -> RequestStatus | None:
    """Return how the request ends if it has timed out by ``now``, else None."""
    if now < due_time(request, stall_timeout):
        return None
    if request.stalled_since is not None and now >= request.stalled_since + stall_timeout:
        return RequestStatus.FINISHED_STALLED
    return RequestStatus.FINISHED_TIMEOUT
