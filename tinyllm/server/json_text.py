"""Writing JSON: on one line, whoever reads the lines."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any, Final

__all__ = ["compact_json", "large_json", "quote"]

_LINE_ENDS: Final = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Legal in JSON, but some clients split lines at them."""


PIECE: Final = 64
"""So many entries of a list are written by one call."""


def quote(text: str) -> str:
    """Return ``text`` as a JSON string."""
    quoted: str = encode_basestring(text)
    return quoted if quoted.isascii() else quoted.translate(_LINE_ENDS)


def compact_json(value: Any) -> str:
    """Return ``value`` as JSON without spaces. Raises ``ValueError`` if a number in it is not finite."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def large_json(value: Any) -> str:
    """Return what `compact_json` does, in many calls of the JSON library.

    It holds the interpreter's lock during each; on another thread, one call for megabytes would hold up the
    event loop all the same.
    """
    match value:
        case dict():
            pairs = (f"{quote(name)}:{large_json(inner)}" for name, inner in value.items())
            return f"{{{','.join(pairs)}}}"
        case list() if len(value) <= PIECE:
            return f"[{','.join(map(large_json, value))}]"
        case list():
            pieces = (value[start : start + PIECE] for start in range(0, len(value), PIECE))
            return f"[{','.join(compact_json(piece)[1:-1] for piece in pieces)}]"
    return compact_json(value)
