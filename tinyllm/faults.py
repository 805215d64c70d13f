"""`first_fault`: what is wrong with a value, in words for whoever gave it."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any, Final

from pydantic import ValidationError

__all__ = ["first_fault"]

REWORDINGS: Final = (
    ("Field required", "is required"),
    ("Value error, ", ""),
    ("Input should ", "must "),
    ("String should ", "must "),
    ("List should ", "must "),
    (" after validation, not 0", ""),
    ("a valid dictionary", "an object"),
    ("an instance of Sequence", "a list"),
    ("a valid integer", "an integer"),
    ("a valid ", "a "),
)
"""From pydantic's words to those of an error message; what is not here stays as it is."""

UNION_PARTS: Final = ("str", "list[")
"""Of a field that takes one type or another, a path also says which of them did not fit."""


MAX_FAULTS: Final = 16
"""So many are looked at in full; a list of nonsense may have tens of thousands, which would take long."""


def first_fault(error: ValidationError, *, secret: Collection[str] = ()) -> tuple[str, str]:
    """Return ``(field, message)`` of the first fault of a pydantic error, without quoting long input.

    Of the fields in ``secret`` nothing is quoted at all.
    """
    faults = _faults(error)
    field = str(faults[0]["loc"][0]) if faults[0]["loc"] else "request"
    fault, details = _nearest([fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]])
    path = _shorten(".".join(map(str, _path(fault))) or field)
    if fault["type"] == "extra_forbidden":
        return field, f"unknown field '{path}'"
    if field in secret or fault["type"] == "missing" or "input" not in fault:
        return field, f"{path}: {details}"
    value = fault["input"]
    if isinstance(value, float) and not math.isfinite(value):
        details = "must be a finite number"
    return field, f"{path}: {details} (got {_shorten(_quote(value))})"


def _faults(error: ValidationError) -> list[Any]:
    """Return pydantic's faults; of very many only the first, and without the values."""
    if error.error_count() <= MAX_FAULTS:
        return list(error.errors(include_url=False))
    text = error.json(include_url=False, include_context=False, include_input=False)
    decoder, faults, end = json.JSONDecoder(), [], 0
    for _ in range(MAX_FAULTS):
        fault, end = decoder.raw_decode(text, end + 1)  # past the bracket or the comma before it
        faults.append(fault)
    return faults


def _nearest(faults: list[Any]) -> tuple[Any, str]:
    """Return the fault to tell of, and what it says.

    A value that fits none of a field's types has a fault for each of them. The deepest is of the type that
    was meant; where none goes deeper than the others, all say what they want.
    """
    nearest = max(faults, key=lambda fault: len(fault["loc"]))
    depth, path = len(nearest["loc"]), _path(nearest)
    same = [fault for fault in faults if len(fault["loc"]) == depth and _path(fault) == path]
    details = dict.fromkeys(_words(fault) for fault in same)
    return nearest, " or ".join(details).replace("or must be", "or")


def _path(fault: Any) -> tuple[str | int, ...]:
    """Return where a fault is, without pydantic's own marks."""
    place = [part for part in fault["loc"] if part != "[key]"]
    if len(place) > 1 and str(place[1]).startswith(UNION_PARTS):
        del place[1]
    return tuple(place)


def _words(fault: Any) -> str:
    message: str = fault["msg"]
    if fault["type"] == "model_type":  # says what the class is called
        return "must be an object"
    for theirs, ours in REWORDINGS:
        message = message.replace(theirs, ours)
    return message


def _quote(value: Any) -> str:
    """Write a value as JSON, which is how most are given; else as Python."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
