"""Reading a request's body, and answering with JSON."""

from __future__ import annotations

from typing import Any, TypeVar

from quart import Response, request

from tinyllm.server.context import Call, current_call
from tinyllm.server.errors import RefusedError
from tinyllm.server.json_body import parse_json
from tinyllm.server.json_text import compact_json
from tinyllm.server.protocol.body import RequestModel, parse_body
from tinyllm.server.service import current_service

__all__ = ["json_response", "read_request"]

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
    data: Any = await request.get_data(cache=False)
    body = parse_json(data, max_depth=config.max_json_depth, max_nodes=config.max_json_nodes)
    call = current_call()
    parsed, sampling, call.ignored_fields = parse_body(body, model, strict_fields=config.strict_fields)
    return parsed, sampling, call


def json_response(body: object, status: int = 200) -> Response:
    """Return ``body`` as JSON."""
    return Response(compact_json(body), status=status, content_type="application/json")
