"""``GET /openapi.json``: the API described for machines, made of the same models that check requests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from quart import Blueprint, Quart, Response, current_app

from tinyllm.params import SamplingParams
from tinyllm.server.body import json_response
from tinyllm.server.openapi_responses import RESPONSES
from tinyllm.server.protocol.body import SAMPLING_FIELDS, RequestModel
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.protocol.completions import CompletionRequest
from tinyllm.server.protocol.fields import HARMLESS_FIELDS, REFUSED_FIELDS
from tinyllm.server.protocol.responses import ResponsesRequest
from tinyllm.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest

__all__ = ["blueprint", "describe", "field_schemas"]

blueprint = Blueprint("openapi", __name__)

BODIES: Final[Mapping[str, type[RequestModel]]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/chat/completions/render": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
STREAMS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
OPEN: Final = ("/", "/health", "/live", "/ready")
TEXT: Final = {"/": "text/html", "/docs": "text/html", "/metrics": "text/plain"}

ALWAYS: Final = {
    400: "The request is malformed.",
    403: "The client's origin or address may not use the server.",
    404: "There is no such thing.",
    414: "The path is too long.",
    421: "The server does not answer to this host name.",
    431: "The headers are too large.",
    500: "An internal error; the log has the cause.",
    503: "The model is being loaded, or the server is shutting down.",
}
WITH_KEY: Final = {401: "The API key is missing or unknown."}
WITH_BODY: Final = {
    408: "The body did not arrive in time.",
    409: "The request was cancelled.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "The queue is full: try again after retry-after seconds.",
    504: "The request took longer than the server allows.",
}


@blueprint.get("/openapi.json")
async def openapi() -> Response:
    """Describe the API in OpenAPI 3.1."""
    return json_response(describe(current_app))


def describe(app: Quart) -> dict[str, Any]:
    """Return the description of an application's routes."""
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        view = app.view_functions[rule.endpoint]
        operation = _operation(path, rule.arguments, inspect.getdoc(view) or "")
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
            paths.setdefault(path, {})[method.lower()] = operation
    schemas = {model.__name__: _schema(model) for model in BODIES.values()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tinyllm", "version": version("tinyllm")},
        "servers": [{"url": app.extensions["tinyllm"].config.root_path or "/"}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Error": ERROR_SCHEMA, **schemas},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, arguments: set[str], text: str) -> dict[str, Any]:
    content: dict[str, Any] = {TEXT.get(path, "*/*"): {}}
    if path in RESPONSES:
        content = {"application/json": {"schema": RESPONSES[path]}}
    if path in STREAMS:
        content["text/event-stream"] = {}
    faults = ALWAYS | (WITH_BODY if path in BODIES else {}) | ({} if path in OPEN else WITH_KEY)
    operation: dict[str, Any] = {
        "summary": text.splitlines()[0],
        "description": text,
        "responses": {"200": {"description": "Done.", "content": content}}
        | {str(status): _fault(line) for status, line in sorted(faults.items())},
    }
    if path not in OPEN:
        operation["security"] = [{"key": []}, {}]
    if arguments:
        schema = {"type": "string"}
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": schema} for name in sorted(arguments)
        ]
    if path in BODIES:
        reference = {"$ref": f"#/components/schemas/{BODIES[path].__name__}"}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    return operation


def _fault(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _schema(model: type[RequestModel]) -> dict[str, Any]:
    fields, required = field_schemas(model)
    return {
        "type": "object",
        "description": inspect.getdoc(model),
        "properties": fields,
        "required": required,
        "additionalProperties": True,
    }


def field_schemas(model: type[RequestModel]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema of every field a body may have, those without effect too, and which it must have."""
    own = _inlined(model.model_json_schema())
    fields: dict[str, Any] = {}
    if model.samples:
        sampling = _inlined(SamplingParams.model_json_schema(schema_generator=_SchemaWriter))["properties"]
        fields |= {name: _one_or_many(sampling[name]) for name in sorted(SAMPLING_FIELDS)}
        fields |= {name: {"description": "Taken, without effect."} for name in sorted(HARMLESS_FIELDS)}
    refused = {name: rule for name, rule in REFUSED_FIELDS.items() if name not in model.model_fields}
    fields |= own["properties"]
    for name, (harmless, reason) in sorted({**refused, **model.refused}.items()):
        fields[name] = {"description": f"Refused: {reason}.", "enum": [*harmless, None]}
    required = own.get("required", [])
    return {name: field if name in required else _or_null(field) for name, field in fields.items()}, required


class _SchemaWriter(GenerateJsonSchema):
    """Passes over Python callables, which no body can hold."""

    def callable_schema(self, schema: Any) -> JsonSchemaValue:
        return {}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Put definitions in place of references to them."""
    definitions = schema.pop("$defs", {})

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                inner = walk(definitions[node["$ref"].rsplit("/", 1)[1]])
                return {**inner, **{key: value for key, value in node.items() if key != "$ref"}}
            skipped = {"title"} if isinstance(node.get("title"), str) else set()  # else a field of that name
            if node.get("additionalProperties") is False:  # unknown names are taken, in objects too
                skipped.add("additionalProperties")
            return {key: walk(value) for key, value in node.items() if key not in skipped}
        return [walk(item) for item in node] if isinstance(node, list) else node

    result: dict[str, Any] = walk(schema)
    return result


def _one_or_many(field: dict[str, Any]) -> dict[str, Any]:
    """Lists in `SamplingParams` may also be given as one value."""
    if field.get("type") != "array":
        return field
    rest = {key: value for key, value in field.items() if key in ("description", "default")}
    return {"anyOf": [{"type": "array", "items": field["items"]}, field["items"]], **rest}


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """A null is as good as nothing, for every field that need not be there."""
    if "anyOf" in field:
        choices = [*field["anyOf"], {"type": "null"}]
        return {**field, "anyOf": [choice for i, choice in enumerate(choices) if choice not in choices[:i]]}
    if "type" in field:
        keep: dict[str, Any] = {key: field[key] for key in ("description", "default") if key in field}
        inner = {key: value for key, value in field.items() if key not in keep}
        return {"anyOf": [inner, {"type": "null"}], **keep}
    return field


ERROR_SCHEMA: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
