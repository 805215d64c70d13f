"""How `TemplateProcess` and its worker talk: bytes behind their length; source and JSON there, JSON back."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO, Final

__all__ = ["MAX_TEXT", "TEXT_PER_BYTE", "decoded", "encoded", "read_frame", "text_limit", "write_frame"]

MAX_TEXT: Final = 1 << 20
"""Of what a template writes, in bytes of JSON. The tokenizer still has to read it all."""
TEXT_PER_BYTE: Final = 8
"""How much that grows with each byte of the messages, and of whatever else the request gives a template."""

_LENGTH: Final = struct.Struct(">Q")


def encoded(value: object) -> bytes:
    """Return plain data as JSON. Lone surrogates, which Python's text may have, stay what they are."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def decoded(data: bytes) -> Any:
    """Return the data that JSON describes."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def text_limit(variables_size: int) -> int:
    """Return how many bytes an answer may have where the variables have so many."""
    return MAX_TEXT + TEXT_PER_BYTE * variables_size


def write_frame(stream: BinaryIO, data: bytes) -> None:
    """Write some bytes so that `read_frame` gives them back."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: BinaryIO, max_size: int | None = None) -> bytes | None:
    """Return the bytes of one `write_frame`; None if the other side has gone, or sends more than allowed."""
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack(header)
    if max_size is not None and size > max_size:
        return None
    data = stream.read(size)
    return data if len(data) == size else None
