"""Server-sent events: how a generation becomes a stream of bytes, whatever form its chunks have."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from json.encoder import encode_basestring
from typing import Any, Final, Protocol

from quart import Response

from tinyllm.errors import TinyLLMError
from tinyllm.server.errors import Fault, fault_of
from tinyllm.server.generation import Generation, Piece

__all__ = ["DONE", "FrameWriter", "compact_json", "event_response", "quote"]

logger = logging.getLogger("tinyllm.server")

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"

_LINE_ENDS: Final = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Legal in JSON, but some clients split lines at them."""


class FrameWriter(Protocol):
    """Turns what a generation gives into events. Each method returns whole events, or nothing."""

    def begin(self) -> bytes:
        """Return what comes before the first piece."""
        ...

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece."""
        ...

    def end(self) -> bytes:
        """Return what comes after the last piece."""
        ...

    def fail(self, fault: Fault) -> bytes:
        """Return the last events of a stream that ends in an error."""
        ...


def quote(text: str) -> str:
    """Return ``text`` as a JSON string that stands on one line, whoever reads the lines."""
    quoted: str = encode_basestring(text)
    return quoted if quoted.isascii() else quoted.translate(_LINE_ENDS)


def compact_json(value: Any) -> str:
    """Return JSON on one line, without spaces."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if text.isascii() else text.translate(_LINE_ENDS)


async def event_response(generation: Generation, writer: FrameWriter, ping_interval: float) -> Response:
    """Answer with events. Waits for the first piece, so that an error before it is an ordinary response.

    If that takes longer than ``ping_interval``, the stream begins all the same, for the sake of proxies.
    """
    await generation.peek(ping_interval)
    response = Response(
        _events(generation, writer, ping_interval), content_type="text/event-stream; charset=utf-8"
    )
    response.headers["cache-control"] = "no-cache"
    response.headers["x-accel-buffering"] = "no"
    response.timeout = None  # or Quart cuts it off without a word after a minute
    return response


async def _events(generation: Generation, writer: FrameWriter, ping_interval: float) -> AsyncIterator[bytes]:
    try:
        if begin := writer.begin():
            yield begin
        async for piece in generation.pieces(ping_interval):
            if frame := PING if piece is None else writer.piece(piece):
                yield frame
        yield writer.end()
    except TinyLLMError as error:
        yield writer.fail(fault_of(error))
    except Exception as error:
        logger.exception("a stream failed")
        yield writer.fail(fault_of(error))
