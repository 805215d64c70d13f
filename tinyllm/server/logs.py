"""Logs of a serving process: lines for people or JSON, without control characters and without prompts."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import sys
from typing import Any, Final

from tinyllm.server.settings import ServerConfig, unknown_variables

__all__ = ["LoopFaults", "set_up_logs", "warn_of_unknown_variables"]

logger = logging.getLogger("tinyllm.server")

QUIET: Final = 10.0
"""Seconds between messages about the same lack."""
FIELDS: Final = ("request_id", "caller", "seconds", "bytes")
"""What records may carry beside their message."""


def set_up_logs(config: ServerConfig) -> None:
    """Send tinyllm's logs to standard error. For programs only: a library leaves this to its user."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter() if config.log_format == "json" else TextFormatter())
    root = logging.getLogger("tinyllm")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(config.log_level.upper())


def warn_of_unknown_variables() -> None:
    """Say which variables look like options and are none."""
    for name in unknown_variables():
        logging.getLogger("tinyllm.server").warning("%s is not an option; it has no effect", name)


class LoopFaults:
    """Takes what an event loop has to complain of, which asyncio would print in its own way."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log a fault. Without file descriptors each connection that waits is one, many times a second."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            logger.error("%s", context["message"], exc_info=error)
        elif loop.time() >= self._quiet_until:
            self._quiet_until = loop.time() + QUIET
            logger.error("connections wait: no file descriptors are left (see ulimit -n, --max-connections)")


class TextFormatter(logging.Formatter):
    """Time, level, message, and what belongs to it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return a line; only tracebacks have more."""
        extra = "".join(f" {name}={value}" for name, value in _fields(record).items() if value != "")
        record.message = _clean(record.getMessage()) + extra
        record.asctime = self.formatTime(record)
        line = self.formatMessage(record)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JSONFormatter(logging.Formatter):
    """One JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}


def _clean(text: str) -> str:
    """Show control characters as escapes: what clients send must not write lines of its own."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
