"""Where a directory keeps its chat templates, newest place first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from tinyllm.artifacts.files import MIB, ModelDirectory
from tinyllm.artifacts.json_file import shorten
from tinyllm.errors import CheckpointError

__all__ = ["read_chat_templates"]

TEMPLATE_FILE: Final = "chat_template.jinja"
TEMPLATE_FOLDERS: Final = ("additional_chat_templates", "chat_templates")
_CONFIG_FILE: Final = "tokenizer_config.json"
_MAX_BYTES: Final = MIB
_MAX_TEMPLATES: Final = 32
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_TEMPLATE: Final = re.compile(r".+/([\w.-]{1,100})\.jinja", re.ASCII)


def read_chat_templates(directory: ModelDirectory, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return Jinja sources by name; ``default`` is the ordinary one.

    Files of their own win over ``tokenizer_config.json``. Raises `CheckpointError`.
    """
    templates = _inline(tokenizer_config.get("chat_template"))
    for folder in TEMPLATE_FOLDERS:
        for name in directory.names(folder):
            if (match := _TEMPLATE.fullmatch(name)) and (file := directory.find(name)):
                templates[match[1]] = file.read_text(_MAX_BYTES)
                _check_count(templates, folder)
    if file := directory.find(TEMPLATE_FILE):
        templates["default"] = file.read_text(_MAX_BYTES)
    return templates


def _inline(value: Any) -> dict[str, str]:
    """Read the config's ``chat_template``: a source, or a list of ``{"name": ..., "template": ...}``."""
    if value is None:
        return {}
    entries = [{"name": "default", "template": value}] if isinstance(value, str) else value
    if not isinstance(entries, list):
        raise CheckpointError(
            f"chat_template must be a string or a list, not {shorten(value)}", file=_CONFIG_FILE
        )
    templates: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise CheckpointError("chat_template must list objects", file=_CONFIG_FILE)
        name, source = entry.get("name"), entry.get("template")
        if not isinstance(name, str) or not isinstance(source, str) or len(name) > 100:
            raise CheckpointError("chat_template entries need a name and a template", file=_CONFIG_FILE)
        if name in templates:
            raise CheckpointError(f"chat_template {shorten(name)} is there twice", file=_CONFIG_FILE)
        if len(source) > _MAX_BYTES:
            raise CheckpointError(f"chat_template has over {_MAX_BYTES:,} characters", file=_CONFIG_FILE)
        if _SURROGATE.search(source) or _SURROGATE.search(name):
            raise CheckpointError("chat_template has half of a surrogate pair", file=_CONFIG_FILE)
        templates[name] = source
        _check_count(templates, _CONFIG_FILE)
    return templates


def _check_count(templates: Mapping[str, str], file: str) -> None:
    if len(templates) > _MAX_TEMPLATES:
        raise CheckpointError(f"has more than {_MAX_TEMPLATES} chat templates", file=file)
