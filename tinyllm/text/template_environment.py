"""The Jinja that published chat templates are written for: immutable and sandboxed, with a few helpers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["RefusedError", "template_environment"]


class RefusedError(TemplateError):
    """The template called ``raise_exception``."""


def template_environment() -> ImmutableSandboxedEnvironment:
    """Return an environment as ``transformers`` has it. It bounds neither time nor memory by itself."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as ``transformers`` does: no HTML escapes, no ASCII escapes unless asked for."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message)[:1000])


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
