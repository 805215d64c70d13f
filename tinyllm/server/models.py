"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from quart import Blueprint, Response

from tinyllm.server.body import json_response
from tinyllm.server.service import Service, current_service

__all__ = ["blueprint"]

blueprint = Blueprint("models", __name__)


@blueprint.get("/v1/models")
async def list_models() -> Response:
    """List the names of the model."""
    service = current_service()
    return json_response({"object": "list", "data": [_model(service, name) for name in service.model_names]})


@blueprint.get("/v1/models/<path:name>")
async def get_model(name: str) -> Response:
    """Return what there is to know about one name; ids of the Hub have a slash in them."""
    service = current_service()
    return json_response(_model(service, service.check_model(name)))


def _model(service: Service, name: str) -> dict[str, Any]:
    engine = service.loaded_engine
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "tinyllm",
        "root": service.model_names[0],
        "parent": None,
        "max_model_len": None if engine is None else engine.info.max_model_len,
    }
