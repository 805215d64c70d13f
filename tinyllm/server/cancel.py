"""``POST /v1/requests/{id}/cancel``, also as ``DELETE /v1/requests/{id}``."""

from __future__ import annotations

from quart import Blueprint, Response

from tinyllm.server.body import json_response
from tinyllm.server.context import current_call
from tinyllm.server.errors import RefusedError
from tinyllm.server.service import current_service

__all__ = ["blueprint"]

blueprint = Blueprint("cancel", __name__)


@blueprint.post("/v1/requests/<path:request_id>/cancel")
@blueprint.delete("/v1/requests/<path:request_id>")
async def cancel(request_id: str) -> Response:
    """End a running request of the same API key, named by its x-request-id or its response's id."""
    if not current_service().cancel(request_id, by=current_call()):
        raise RefusedError(404, "request_not_found", "no request of this id is running")
    return json_response({"id": request_id, "object": "request.cancelled", "cancelled": True})
