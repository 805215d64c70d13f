"""Server-sent events: how a generation becomes a stream of bytes, whatever form its chunks have."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Final, Protocol

from quart import Response

from tinyllm.errors import TinyLLMError
from tinyllm.server.errors import Fault, fault_of
from tinyllm.server.generation import Generation, Piece

__all__ = ["DONE", "FrameWriter", "event_response"]

logger = logging.getLogger("tinyllm.server")

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"


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
        async for pieces in generation.batches(ping_interval):
            if frames := b"".join(map(writer.piece, pieces)) if pieces else PING:
                yield frames
        yield writer.end()
    except TinyLLMError as error:
        yield writer.fail(fault_of(error, generation.field_names))
    except Exception as error:
        logger.exception("a stream failed")
        yield writer.fail(fault_of(error, generation.field_names))
