"""Writing JSON: on one line, whoever reads the lines."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any, Final

__all__ = ["compact_json", "quote"]

_LINE_ENDS: Final = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""Legal in JSON, but some clients split lines at them."""


def quote(text: str) -> str:
    """Return ``text`` as a JSON string."""
    quoted: str = encode_basestring(text)
    return quoted if quoted.isascii() else quoted.translate(_LINE_ENDS)


def compact_json(value: Any) -> str:
    """Return ``value`` as JSON without spaces. Raises ``ValueError`` if a number in it is not finite."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if text.isascii() else text.translate(_LINE_ENDS)
