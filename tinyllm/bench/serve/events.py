"""`EventParser`: server-sent events as they come off the wire, cut anywhere."""

from __future__ import annotations

from typing import Final

__all__ = ["DONE", "EventError", "EventParser"]

DONE: Final = b"[DONE]"
MAX_EVENT_BYTES: Final = 64 << 20
"""A server that never ends a line must not fill the memory."""


class EventError(ValueError):
    """What came is no stream of events."""


class EventParser:
    """Bytes in, the data of whole events out (HTML standard, 9.2.6). Other fields and comments are skipped.

    Lines may end in LF or CRLF. The work is done by ``split`` over what came, not byte by byte.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """Return the data of the events that ``received`` ends. Raises `EventError` past 64 MiB of one."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventError("an event is longer than 64 MiB")
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                value = line[5:].removesuffix(b"\r")
                self._data.append(value[1:] if value.startswith(b" ") else value)
            elif line in (b"", b"\r") and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        return events
