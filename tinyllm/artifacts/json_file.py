"""Strict reading of JSON that others wrote: bounded in size, and each field checked for type and range."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeVar

from tinyllm.artifacts.files import MIB
from tinyllm.errors import CheckpointError

__all__ = ["MAX_JSON_BYTES", "Fields", "parse_object", "shorten"]

MAX_JSON_BYTES: Final = 10 * MIB
"""More than the headers and indexes of known checkpoints; four such files parsed stay under 256 MiB."""

MAX_JSON_VALUES: Final = 200_000
"""A value costs Python up to about 150 bytes, however few it has in the file."""

_T = TypeVar("_T")


def parse_object(data: bytes | bytearray, file: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `CheckpointError` on anything else, on repeated names, and over the limits.

    NaN and Infinity, which Python's own writer makes, are refused only where a number is used.
    """
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(
            f"{len(data):,} bytes of JSON are over the limit of {MAX_JSON_BYTES:,}", file=file
        )
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MAX_JSON_VALUES:
        raise CheckpointError(f"more than {MAX_JSON_VALUES:,} values in one JSON file", file=file)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in values:
                raise CheckpointError(f"{shorten(name)} is there twice", file=file)
            values[name] = value
        return values

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except UnicodeDecodeError as error:
        raise CheckpointError(f"is not UTF-8 text (byte {error.start})", file=file) from None
    except RecursionError:
        raise CheckpointError("is nested too deeply", file=file) from None
    except json.JSONDecodeError as error:
        raise CheckpointError(
            f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})", file=file
        ) from None
    except ValueError:  # an integer with thousands of digits
        raise CheckpointError("is not valid JSON: a number is too long", file=file) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"must hold a JSON object, not {_kind(value)}", file=file)
    return value


def shorten(value: object, limit: int = 80) -> str:
    """Show a value of a file in a message: quoted, escaped and not too long; containers by their kind."""
    if isinstance(value, (list, dict)):
        return _kind(value)
    if isinstance(value, int) and not -(10**30) < value < 10**30:
        return "a number with over 30 digits"
    text = repr(value[: limit + 1] if isinstance(value, str) else value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


class Fields:
    """A JSON object's fields, read by name with their type and range.

    A field that is null counts as missing. A missing field gives ``default``, or is a fault if there is none.
    Every fault is a `CheckpointError` that names file and field.
    """

    def __init__(self, values: Mapping[str, Any], file: str, prefix: str = "") -> None:
        self.values, self.file, self._prefix = values, file, prefix

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def fault(self, name: str, message: str) -> CheckpointError:
        """Return the error to raise about a field."""
        return CheckpointError(f"{self._prefix}{name} {message}", file=self.file)

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int) -> int:
        """Read an integer from ``minimum`` to ``maximum``."""
        value = self._get(name, default, (int,), "an integer")
        if not minimum <= value <= maximum:
            raise self.fault(name, f"must be from {minimum:,} to {maximum:,}, not {shorten(value)}")
        return value

    def number(self, name: str, default: float | None = None, *, minimum: float, maximum: float) -> float:
        """Read a finite number from ``minimum`` to ``maximum``."""
        value = self._get(name, default, (float, int), "a number")
        if not (minimum <= value <= maximum and math.isfinite(value)):
            raise self.fault(name, f"must be from {minimum:g} to {maximum:g}, not {shorten(value)}")
        return float(value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """Read true or false."""
        return self._get(name, default, (bool,), "true or false")

    def string(self, name: str, default: str | None = None) -> str:
        """Read a string."""
        return self._get(name, default, (str,), "a string")

    def mapping(self, name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        """Read an object."""
        return self._get(name, default, (dict,), "an object")

    def sequence(self, name: str, default: list[Any] | None = None) -> list[Any]:
        """Read a list."""
        return self._get(name, default, (list,), "a list")

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Read a token id, or a list of them; missing is none."""
        value = self.values.get(name)
        entries: Collection[Any] = () if value is None else value if isinstance(value, list) else [value]
        for entry in entries:
            if type(entry) is not int or not 0 <= entry < 2**31:
                raise self.fault(name, f"must be a token id or a list of token ids, not {shorten(entry)}")
        return tuple(entries)

    def _get(self, name: str, default: _T | None, kinds: tuple[type[_T], ...], words: str) -> _T:
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise self.fault(name, "is missing")
            return default
        if type(value) not in kinds:  # exactly: true is not an integer here
            raise self.fault(name, f"must be {words}, not {shorten(value)}")
        return value  # type: ignore[no-any-return]
