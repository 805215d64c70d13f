"""Checks of the core's own books, for tests and debugging."""

from __future__ import annotations

__all__ = ["IntegrityError", "require"]


class IntegrityError(Exception):
    """The books of the pool, the manager or the scheduler contradict themselves: a bug of tinyllm."""


def require(condition: bool, message: str) -> None:
    """Raise `IntegrityError` unless the condition holds."""
    if not condition:
        raise IntegrityError(message)
