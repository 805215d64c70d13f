"""`create_app`: the Quart application, put together."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from quart import Quart, Response, request
from werkzeug.exceptions import HTTPException

from tinyllm.errors import TinyLLMError
from tinyllm.server import (
    cancel,
    chat,
    completions,
    docs_page,
    models,
    openapi,
    page,
    probes,
    render,
    responses,
    tokenize,
)
from tinyllm.server.body import json_response
from tinyllm.server.context import current_call
from tinyllm.server.errors import error_body, fault_of
from tinyllm.server.guard import Guard
from tinyllm.server.keys import load_keys
from tinyllm.server.service import Service
from tinyllm.server.settings import ServerConfig

if TYPE_CHECKING:
    from tinyllm.engine.async_engine import AsyncEngine

__all__ = ["create_app"]

logger = logging.getLogger("tinyllm.server")

BLUEPRINTS = (
    chat.blueprint,
    render.blueprint,
    completions.blueprint,
    responses.blueprint,
    models.blueprint,
    tokenize.blueprint,
    cancel.blueprint,
    probes.blueprint,
    openapi.blueprint,
    docs_page.blueprint,
    page.blueprint,
)


def create_app(config: ServerConfig | None = None, engine: AsyncEngine | None = None) -> Quart:
    """Return the application. Nothing is loaded before it is served.

    ``engine`` is used as it is if it runs already, and then not closed; a new one is started and closed with
    the application; without one, it is made of ``config``. Raises `ConfigError`.
    """
    config = config or ServerConfig()
    app = Quart("tinyllm", static_folder=None)
    app.config.update(
        MAX_CONTENT_LENGTH=config.max_body_bytes,
        RESPONSE_TIMEOUT=None,
        PROPAGATE_EXCEPTIONS=False,
    )
    keys = load_keys(config)
    service = Service(config, engine, num_keys=len(keys))
    app.extensions["tinyllm"] = service
    for blueprint in BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.register_error_handler(Exception, _answer_error)
    app.before_request(_note_route)
    app.before_serving(service.start)
    app.after_serving(service.stop)
    application: Any = app  # Quart names the events of ASGI one by one; the guard is not so particular
    application.asgi_app = Guard(application.asgi_app, config, keys, service.http_metrics)
    return app


async def _note_route() -> None:
    current_call().handler = "" if request.url_rule is None else request.url_rule.rule


async def _answer_error(error: Exception) -> Response:
    """Answer in OpenAI's envelope, whatever went wrong; what nobody expected is only told to the log."""
    if not isinstance(error, (TinyLLMError, HTTPException)):
        logger.error("request %s failed", current_call().request_id, exc_info=error)
    fault = fault_of(error, current_call().field_names)
    response = json_response(error_body(fault), fault.status)
    response.headers.update(fault.headers)
    return response
