"""The standard streams, whatever the caller made of them: closed, full, or of an encoding without letters."""

from __future__ import annotations

import io
import os
import sys

from tinyllm.errors import ConfigError, InvalidRequestError

__all__ = ["drop_output", "read_input", "set_up_streams"]


def set_up_streams() -> None:
    """Let a closed input be an empty one, and letters that an output cannot write become question marks.

    Raises `ConfigError` if standard output is closed: there would be nowhere to answer.
    """
    if sys.stdin is None:  # opened first of the three, so that it takes the number that is free
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  for as long as the process lives
    is_closed = sys.stdout is None
    if is_closed:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if is_closed:
        raise ConfigError("standard output is closed")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def read_input() -> str:
    """Return all of standard input. Raises `InvalidRequestError` if it is not text."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"standard input is not {error.encoding} text (byte {error.start})"
        ) from None


def drop_output() -> None:
    """Let what is still to be written to standard output go nowhere: it has failed, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
