"""``GET /docs``: the same description for people. Made here, so that it works without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from typing import Any

from quart import Blueprint, Response, current_app

from tinyllm.server.openapi import describe
from tinyllm.server.page import html_page

__all__ = ["blueprint", "kind_of"]

blueprint = Blueprint("docs", __name__)


@blueprint.get("/docs")
async def docs() -> Response:
    """Describe the API for people."""
    document = describe(current_app)
    schemas = document["components"]["schemas"]
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    bodies = "".join(_body(name, schema) for name, schema in schemas.items() if name != "Error")
    return html_page(f"<h1>tinyllm's API</h1><dl>{operations}</dl>{bodies}")


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    link = ""
    if (body := operation.get("requestBody")) is not None:
        name = body["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        link = f' with a <a href="#{name}">{name}</a>'
    return (
        f"<dt><code>{method.upper()} {escape(path)}</code>{link}</dt>"
        f"<dd>{_text(operation['description'])}</dd>"
    )


def _body(name: str, schema: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' (required)' if field in schema['required'] else ''}</td>"
        f"<td>{escape(kind_of(detail))}</td><td>{_text(detail.get('description', ''))}</td></tr>"
        for field, detail in schema["properties"].items()
    )
    return (
        f'<h2 id="{name}">{name}</h2><p>{_text(schema["description"])}</p>'
        f"<table><tr><th>Field</th><th>Takes</th><th>Meaning</th></tr>{rows}</table>"
    )


def _text(description: str) -> str:
    return re.sub("``(.+?)``", r"<code>\1</code>", escape(description))


def kind_of(detail: Mapping[str, Any]) -> str:
    """Say in few words what values a field takes."""
    if "anyOf" in detail:
        kinds = [kind_of(choice) for choice in detail["anyOf"] if choice.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in detail:
        return ", ".join(json.dumps(value) for value in detail["enum"] if value is not None)
    bounds = [f"{sign} {detail[key]}" for key, sign in BOUNDS.items() if key in detail]
    return " ".join([str(detail.get("type", "anything")), *bounds])


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
