"""Filters and globals of chat templates: Jinja's, within the budget, and what published ones expect."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from jinja2 import TemplateError
from jinja2.utils import Namespace

from tinyllm.text.template_budget import (
    ITEM_SIZE,
    LimitError,
    charge_for,
    check_format,
    check_join,
    check_replace,
    check_sizes,
    current_budget,
)

__all__ = ["GLOBALS", "RefusedError", "bounded_filters", "bounded_tests"]

_REMOVED: Final = ("pprint", "urlize", "xmlattr")
_SIZED: Final = ("batch", "center", "indent", "round", "slice", "truncate", "wordwrap")

_ORDERING: Final = ("dictsort", "groupby", "max", "min", "sort", "unique")
"""Filters that compare what they are given."""
_COMPARING: Final = (
    *("==", "!=", ">", ">=", "<", "<=", "eq", "ne", "gt", "ge", "lt", "le"),
    *("equalto", "greaterthan", "lessthan", "in", "lower", "upper"),
)
"""Tests that look at all of a value; the others look at its kind, or at a number."""

Filter = Callable[..., Any]


def bounded_filters(jinja: Mapping[str, Filter]) -> dict[str, Filter]:
    """Return Jinja's filters without those that cannot be bounded, each charging for what it makes."""
    filters = {name: function for name, function in jinja.items() if name not in _REMOVED}
    filters |= {"join": _join, "replace": _replace, "string": _string, "sum": _sum}
    filters |= {"format": _format, "tojson": _tojson}
    filters |= {name: _with_small_sizes(filters[name]) for name in _SIZED}
    filters |= {name: _with_charged_input(filters[name]) for name in _ORDERING}
    return {name: _kept(function) for name, function in filters.items()}


def bounded_tests(jinja: Mapping[str, Any]) -> dict[str, Any]:
    """Return Jinja's tests, each charging for what it looks at."""
    tests = {**jinja, **{name: _with_charged_input(jinja[name]) for name in _COMPARING}}
    return {name: _kept(function) for name, function in tests.items()}


def _kept(function: Filter) -> Filter:
    """Count what a filter or test makes."""

    @functools.wraps(function)  # with Jinja's marks of who wants the context
    def kept(*args: Any, **kwargs: Any) -> Any:
        budget = current_budget()
        budget.charge(ITEM_SIZE)
        return budget.keep(function(*args, **kwargs))

    return kept


def _with_small_sizes(function: Filter) -> Filter:
    """Refuse large widths, counts and precisions."""

    @functools.wraps(function)
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        check_sizes([*args, *kwargs.values()])
        if function.__name__ == "do_indent":
            width = next(iter([*args, *kwargs.values()]), 4)
            indents = len(width) if isinstance(width, str) else width
            current_budget().plan((str(value).count("\n") + 1) * int(indents))
        return function(value, *args, **kwargs)

    return checked


def _with_charged_input(function: Filter) -> Filter:
    """Charge for all that a function compares. Its first argument may be Jinja's own."""

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        given = [_listed(value) for value in args]
        named = {name: _listed(value) for name, value in kwargs.items()}
        charge_for(*given, *named.values())
        return function(*given, **named)

    return charged


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Iterator) else value


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [_member(item, attribute) for item in items]
    check_join(str(d), items)
    return str(d).join(map(str, items))


def _member(item: Any, name: str | int) -> Any:
    """Look up a part of a mapping or list by a dotted path."""
    for part in str(name).split("."):
        item = item[int(part)] if part.isdecimal() and isinstance(item, (list, tuple)) else item.get(part, "")
    return item


def _replace(s: str, old: str, new: str, count: int | None = None) -> str:
    s, old, new = str(s), str(old), str(new)
    check_replace(s, old, new)
    return s.replace(old, new, -1 if count is None else count)


def _string(value: Any) -> str:
    current_budget().size_of(value)
    return str(value)


def _sum(iterable: Iterable[Any], attribute: str | int | None = None, start: float = 0) -> float:
    values = list(iterable)
    if attribute is not None:
        values = [_member(value, attribute) for value in values]
    if not all(isinstance(value, (int, float)) for value in [start, *values]):
        raise TemplateError("sum adds numbers only")
    return sum(values, start)


def _format(value: str, *args: Any, **kwargs: Any) -> str:
    arguments: Any = kwargs or args
    check_format(str(value), arguments)
    return str(str(value) % arguments)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as ``transformers`` does: no HTML escapes, no ASCII escapes unless asked for."""
    if indent is not None:
        check_sizes([indent * 100])
    current_budget().size_of(value)
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _TemplateNamespace(Namespace):
    """A namespace whose names are ordinary, and that is not written out with all it holds."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise TemplateError(f"a namespace takes no name that starts with an underscore ({name!r:.40})")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


class RefusedError(TemplateError):
    """The template called ``raise_exception``."""


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message)[:1000])


def _strftime_now(format: str) -> str:
    if len(format) > 200 or re.search(r"%[^a-zA-Z%]*\d", format):
        raise LimitError("it uses too long a date format")
    return datetime.now().strftime(format)


GLOBALS: Final[Mapping[str, Any]] = {
    "namespace": _TemplateNamespace,
    "raise_exception": _raise_exception,
    "strftime_now": _strftime_now,
}
"""What templates may call, beside Jinja's own."""
