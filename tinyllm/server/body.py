"""Reading a request's body, and answering with JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, TypeVar

from quart import Response, request
from werkzeug.exceptions import RequestTimeout

from tinyllm.server.context import Call, current_call
from tinyllm.server.errors import RefusedError
from tinyllm.server.json_body import parse_json
from tinyllm.server.json_text import compact_json, large_json
from tinyllm.server.protocol.body import RequestModel, parse_body
from tinyllm.server.service import current_service

__all__ = ["json_response", "large_response", "read_request"]

PART: Final = 1 << 17
"""So much of a large body is sent at once: others have their turn, and for each there is time to be read."""

M = TypeVar("M", bound=RequestModel)


async def read_request(model: type[M]) -> tuple[M, dict[str, Any], Call]:
    """Return the request, the sampling fields given beside its own, and its call."""
    config = current_service().config
    if request.mimetype != "application/json":
        raise RefusedError(
            415, "unsupported_media_type", "the body must be JSON, with content-type: application/json"
        )
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RefusedError(415, "unsupported_media_type", "the body must not be compressed")
    data = await _read_body(config.body_timeout)
    body = parse_json(data, max_depth=config.max_json_depth, max_nodes=config.max_json_nodes)
    call = current_call()
    parsed, sampling, call.ignored_fields = parse_body(body, model, strict_fields=config.strict_fields)
    return parsed, sampling, call


async def _read_body(seconds: float) -> bytes:
    """Return the whole body, within a time.

    Not by Quart's `get_data`: before Python 3.12 its `asyncio.wait_for` loses a cancellation that comes
    together with the body's end, and so the request of a client that has gone would run on.
    """
    try:
        async with asyncio.timeout(seconds):
            data: bytes = await request.body
    except TimeoutError:
        raise RequestTimeout from None
    return data


def json_response(body: object, status: int = 200) -> Response:
    """Return ``body`` as JSON."""
    return Response(compact_json(body), status=status, content_type="application/json")


async def large_response(make: Callable[[], object]) -> Response:
    """Return what ``make`` makes as JSON; it may have megabytes, so a thread makes and writes it."""
    body = await asyncio.to_thread(lambda: large_json(make()).encode())
    response = Response(_parts(body), content_type="application/json")
    response.content_length = len(body)
    return response


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PART):
        yield body[start : start + PART]
