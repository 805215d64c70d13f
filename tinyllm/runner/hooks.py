"""Logits processors: a user's own callables, whose faults stay with their request."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tinyllm.core.request import Request
from tinyllm.errors import RequestFailedError
from tinyllm.params import LogitsProcessor
from tinyllm.runner.constraints import LogitsEdit

__all__ = ["logits_processors"]


def logits_processors(request: Request, vocab_size: int, device: torch.device) -> LogitsEdit | None:
    """Run the request's hooks in order; each gets its own copies of the token ids and of the row."""
    hooks = request.params.logits_processors
    if not hooks:
        return None

    def edit(logits: Tensor, request: Request) -> None:
        for hook in hooks:
            _run(hook, request, logits)

    return edit


def _run(hook: LogitsProcessor, request: Request, logits: Tensor) -> None:
    """Replace ``logits`` by what a hook makes of it.

    Whatever it raises stays with the request. That includes KeyboardInterrupt and SystemExit: on the engine's
    thread neither comes from the user, and both would end every other request.
    """
    try:
        result: object = hook(list(request.token_ids), logits.clone())
        fault = _fault(result, logits)
        if isinstance(result, Tensor) and fault is None:
            logits.copy_(result)
    except BaseException as error:
        message = f"logits processor {_name(hook)} raised {type(error).__name__}"
        raise RequestFailedError(message) from error
    if fault is not None:
        raise RequestFailedError(
            f"logits processor {_name(hook)} returned {fault}; it must return a {logits.dtype} tensor "
            f"of shape {list(logits.shape)} on {logits.device} whose maximum is finite"
        )


def _fault(result: object, logits: Tensor) -> str | None:
    """Say what keeps a hook's result from being sampled from, if anything does."""
    if not isinstance(result, Tensor):
        return type(result).__name__
    if result.shape != logits.shape:
        return f"shape {list(result.shape)}"
    if result.dtype != logits.dtype or result.device != logits.device:
        return f"{result.dtype} on {result.device}"
    best = result.amax().item()
    if best == -math.inf:
        return "-inf for every token"
    return None if math.isfinite(best) else "NaN or +inf"


def _name(hook: LogitsProcessor) -> str:
    """Return a short name for messages."""
    try:
        return str(getattr(hook, "__qualname__", type(hook).__qualname__))[:80]
    except BaseException:  # an object may answer for its attributes as it likes
        return "(without a name)"
