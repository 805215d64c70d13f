"""Strict JSON: what a request's bytes mean, or why they are refused.

Python's own parser takes NaN, lets the last of two equal keys win, makes strings that are not Unicode out of
lone surrogates, and can be made to recurse without end. Each has broken a server of this kind.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, NoReturn

from tinyllm.errors import InvalidRequestError

__all__ = ["InvalidJSONError", "parse_json"]

_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]+")
_MANY_DIGITS: Final = re.compile(r"(?<!\d)\d{20}")
_LONG_INTEGER: Final = re.compile(r"(?<![\d.eE+-])-?\d{20,}(?![\d.eE])")
_SURROGATE_ESCAPE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class InvalidJSONError(InvalidRequestError):
    """The body is not JSON, or not JSON that means the same to everyone."""

    code = "invalid_json"


def parse_json(data: bytes, *, max_depth: int = 32, max_nodes: int = 50_000) -> Any:
    """Return the value that ``data`` spells.

    Raises `InvalidJSONError` for anything that is not UTF-8 and RFC 8259, for numbers that no double holds,
    equal keys in one object, lone surrogates, nesting beyond ``max_depth`` and values beyond ``max_nodes``.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidJSONError(f"the body is not UTF-8 (byte {error.start})") from None
    _check_size(_STRING.sub("", text), max_depth, max_nodes)
    value = _load(text)
    if _SURROGATE_ESCAPE.search(text):
        _check_unicode(value)
    return value


def _check_size(structure: str, max_depth: int, max_nodes: int) -> None:
    """Bound what the parser will meet. ``structure`` is the text without its strings."""
    nodes = 1 + structure.count(",") + structure.count("[") + structure.count("{")
    if nodes > max_nodes:
        raise InvalidJSONError(f"the body has more than {max_nodes} values")
    if _deepest(_NO_BRACKETS.sub("", structure)) > max_depth:
        raise InvalidJSONError(f"the body is nested more than {max_depth} levels deep")
    if _MANY_DIGITS.search(structure) and _LONG_INTEGER.search(structure):
        raise InvalidJSONError("the body has an integer of more than 19 digits")


def _deepest(brackets: str) -> int:
    """Return how deep the parser will get."""
    depth = deepest = 0
    for bracket in brackets:
        depth += 1 if bracket in "[{" else -1
        if depth < 0:
            break  # where the parser will stop too
        deepest = max(deepest, depth)
    return deepest


def _load(text: str) -> Any:
    try:
        return json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_object_of
        )
    except json.JSONDecodeError as error:
        raise InvalidJSONError(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise InvalidJSONError(f"{name} is not JSON: numbers must be finite")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidJSONError("the body has a number that is too large")
    return value


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidJSONError(f"the body has the key {twice[:80]!r} twice in one object")
    return value


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidJSONError("the body has a lone surrogate, which is not valid Unicode") from None
