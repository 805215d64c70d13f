"""A Jinja environment for templates that nobody has vetted: no code execution, and bounds on time and memory.

Jinja's own sandbox keeps templates from reaching Python's internals, but lets them run and grow for ever, and
a thread that runs one cannot be stopped. So a template is changed before it is compiled: every loop body and
every macro begins with a charge to a `Budget`, and every expression that builds a new value goes through one.
What a template does between two charges is bounded by the size of its values, and that is bounded too.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any, Final, TypeVar

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["MAX_SECONDS", "Budget", "LimitError", "RefusedError", "SandboxEnvironment", "spend"]

MAX_SOURCE_CHARACTERS: Final = 100_000
MAX_SOURCE_NODES: Final = 20_000
MAX_SOURCE_DEPTH: Final = 200
MAX_SIZE_ARGUMENT: Final = 10_000
"""Of widths, counts and precisions."""
MAX_INTEGER_BITS: Final = 16_384
MAX_SECONDS: Final = 0.5
"""Of processor time: waiting for a busy machine does not count."""
MAX_SIZE: Final = 16 << 20
"""Of all values that a template makes, in characters."""
SIZE_PER_INPUT: Final = 64
"""How much that grows with each character of the messages."""
ITEM_SIZE: Final = 16
"""What a place in a list or mapping counts, in characters."""

_T = TypeVar("_T")

_REMOVED_FILTERS: Final = ("pprint", "urlize", "xmlattr")
_REMOVED_GLOBALS: Final = ("lipsum",)
_SIZED_FILTERS: Final = ("batch", "center", "indent", "round", "slice", "truncate", "wordwrap")
_UNSAFE_METHODS: Final = frozenset(
    {"encode", "expandtabs", "format_map", "maketrans", "to_bytes", "translate"}
)
_NESTED_FIELD: Final = re.compile(r"\{[^{}]*\{")
_WIDE_FORMAT: Final = re.compile(r"[:%.][^{}%a-zA-Z]*(?:\d{4}|\*)")


class LimitError(TemplateError):
    """The template went over one of its limits."""


class Budget:
    """What one rendering may still use: processor time of its thread, and size of the values it makes."""

    def __init__(self, input_size: int, *, seconds: float) -> None:
        self.max_value = MAX_SIZE // 2 + SIZE_PER_INPUT * input_size
        self._left = MAX_SIZE + SIZE_PER_INPUT * input_size
        self._deadline = time.thread_time() + seconds

    def charge(self, size: int) -> None:
        """Count ``size``. Raises `LimitError` when it, or the time, is used up."""
        self._left -= size
        if self._left < 0:
            raise LimitError("it makes too much text")
        self._check_time()

    def keep(self, value: _T) -> _T:
        """Count a value that was just made, and return it."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.charge(len(value) * ITEM_SIZE)
            self.size_of(value)
        return value

    def size_of(self, *values: object) -> int:
        """Return the length that values have when written out; lists may share parts, text may not.

        Raises `LimitError` when that is too much, before all of it has been walked.
        """
        size, waiting = 0, list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, str):
                size += len(value)
                continue
            size += ITEM_SIZE
            if isinstance(value, dict):
                waiting += [*value, *value.values()]
            elif isinstance(value, (list, tuple, KeysView, ValuesView, ItemsView)):
                waiting += value
            else:
                continue
            self._check_time()
            if size + len(waiting) > self.max_value:
                raise LimitError("it makes too large a value")
        return size

    def _check_time(self) -> None:
        if time.thread_time() > self._deadline:
            raise LimitError("it takes too long")

    def plan(self, size: int) -> None:
        """Refuse an operation whose result would be of this size, before it is done."""
        if size > self.max_value:
            raise LimitError("it makes too large a value")


_budget: ContextVar[Budget] = ContextVar("template_budget")


@contextmanager
def spend(budget: Budget) -> Iterator[None]:
    """Charge what templates do in this context to ``budget``."""
    token = _budget.set(budget)
    try:
        yield
    finally:
        _budget.reset(token)


class SandboxEnvironment(ImmutableSandboxedEnvironment):
    """Jinja as published chat templates expect it, with every growth charged to the current `Budget`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Not optimized: Jinja would compute constant expressions at compile time, where nothing is charged.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, loopcontrols],
            optimized=False,
            finalize=_written,
        )
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name in _REMOVED_GLOBALS:
            del self.globals[name]
        self.filters |= {"join": _join, "replace": _replace, "string": _string, "sum": _sum}
        self.filters |= {"format": _format, "tojson": _tojson}
        for name in _SIZED_FILTERS:
            self.filters[name] = _with_small_sizes(self.filters[name])
        self.filters = {name: _kept(function) for name, function in self.filters.items()}
        # Names with a space, so that no template can call them.
        self.filters |= {"charge it": _charge, "keep it": _keep, "concat it": _concat}
        self.globals |= {
            "namespace": _TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuse the methods of text and numbers that grow without a check."""
        if isinstance(obj, (str, int)) and attr in _UNSAFE_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a macro or a method, within the budget."""
        budget = _budget.get()
        budget.charge(ITEM_SIZE)
        method = getattr(__obj, "__wrapped__", __obj)
        if isinstance(method, (BuiltinMethodType, MethodType)) and isinstance(method.__self__, str):
            args = _checked_arguments(method.__self__, method.__name__, args, kwargs)
        return budget.keep(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do an operation that can grow, if its result will not be too large."""
        budget = _budget.get()
        if isinstance(left, str) and operator == "%":
            _check_format(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * right)
        elif (
            operator == "+" and isinstance(left, (str, list, tuple)) and isinstance(right, (str, list, tuple))
        ):
            budget.plan(len(left) + len(right))
        return budget.keep(super().call_binop(context, operator, left, right))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse, check its shape, and put the charges in."""
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise LimitError(f"it is longer than {MAX_SOURCE_CHARACTERS:,} characters")
        template = super()._parse(source, name, filename)
        _check_shape(template)
        changed: nodes.Template = _Charges().visit(template)
        changed.set_environment(self)
        return changed


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Charges(NodeTransformer):
    """Puts a charge at the start of what repeats, and around what builds a value."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._charged_body(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._charged_body(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._charged_body(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:
        return self._charged_body(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return self._kept(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return self._kept(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._kept(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        return self._kept(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "concat it")

    def _charged_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        size = sum(len(data.data) for data in node.find_all(nodes.TemplateData)) + ITEM_SIZE
        self.generic_visit(node)
        charge = _filter(nodes.Const(size, lineno=node.lineno), "charge it")
        node.body.insert(0, nodes.ExprStmt(charge, lineno=node.lineno))
        return node

    def _kept(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "keep it")


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _check_shape(template: nodes.Template) -> None:
    num_nodes = 0
    waiting: list[tuple[nodes.Node, int]] = [(template, 0)]
    while waiting:
        node, depth = waiting.pop()
        num_nodes += 1
        if depth > MAX_SOURCE_DEPTH:
            raise LimitError(f"it is nested more than {MAX_SOURCE_DEPTH} deep")
        if num_nodes > MAX_SOURCE_NODES:
            raise LimitError(f"it has more than {MAX_SOURCE_NODES:,} parts")
        waiting += ((child, depth + 1) for child in node.iter_child_nodes())


# What the charges call.


def _charge(size: int) -> str:
    _budget.get().charge(size)
    return ""


def _keep(value: Any) -> Any:
    return _budget.get().keep(value)


def _concat(values: list[Any]) -> str:
    budget = _budget.get()
    budget.plan(budget.size_of(*values))
    return budget.keep("".join(map(str, values)))


@pass_context
def _written(_: Context, value: Any) -> Any:
    """Count a value that the template writes out."""
    budget = _budget.get()
    if not isinstance(value, str):
        budget.size_of(value)
        value = str(value)
    return budget.keep(value)


# Checks before an operation whose result could be large.


def _check_bits(bits: int) -> None:
    if bits > MAX_INTEGER_BITS:
        raise LimitError("it makes too large a number")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int):
            _budget.get().plan(len(value) * times)


def _check_format(text: str, arguments: Any) -> None:
    """Refuse wide fields, and more text than fits if every field is as long as all arguments together."""
    if _WIDE_FORMAT.search(text):
        raise LimitError("it formats with too large a width")
    budget = _budget.get()
    fields = text.count("{") + text.count("%")
    budget.plan(len(text) + fields * budget.size_of(arguments))


def _check_replace(text: str, old: str, new: str) -> None:
    times = text.count(old) if old else len(text) + 1
    _budget.get().plan(len(text) + times * len(new))


def _checked_arguments(
    text: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Check a call of a method of ``text``, and return its arguments (a list where there was a generator)."""
    if any(isinstance(value, int) and abs(value) > _budget.get().max_value for value in args):
        raise LimitError("it makes too large a value")
    if method == "format_map":
        raise TemplateError("format_map is not available to chat templates")
    if method == "format":
        if _NESTED_FIELD.search(text):
            raise LimitError("it formats with a width that is not written out")
        _check_format(text, [*args, *kwargs.values()])
    elif method in ("center", "ljust", "rjust", "zfill"):
        _check_sizes(args)
    elif method == "replace" and len(args) >= 2 and all(isinstance(value, str) for value in args[:2]):
        _check_replace(text, args[0], args[1])
    elif method == "join" and len(args) == 1:
        items = list(args[0])
        _check_join(text, items)
        return (items,)
    return args


def _check_join(separator: str, items: list[Any]) -> None:
    budget = _budget.get()
    budget.plan(budget.size_of(*items) + len(separator) * len(items))


def _check_sizes(values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_SIZE_ARGUMENT:
            raise LimitError(f"it uses a size of more than {MAX_SIZE_ARGUMENT:,}")


# Filters and globals.


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Count what a filter makes."""

    @functools.wraps(function)  # with Jinja's marks of who wants the context
    def kept(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.charge(ITEM_SIZE)
        return budget.keep(function(*args, **kwargs))

    return kept


def _with_small_sizes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse large widths, counts and precisions."""

    @functools.wraps(function)
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_sizes([*args, *kwargs.values()])
        if function.__name__ == "do_indent":
            width = next(iter([*args, *kwargs.values()]), 4)
            indents = len(width) if isinstance(width, str) else width
            _budget.get().plan((str(value).count("\n") + 1) * int(indents))
        return function(value, *args, **kwargs)

    return checked


def _join(value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    items = list(value)
    if attribute is not None:
        items = [_member(item, attribute) for item in items]
    _check_join(str(d), items)
    return str(d).join(map(str, items))


def _member(item: Any, name: str | int) -> Any:
    """Look up a part of a mapping or list by a dotted path."""
    for part in str(name).split("."):
        item = item[int(part)] if part.isdecimal() and isinstance(item, (list, tuple)) else item.get(part, "")
    return item


def _replace(s: str, old: str, new: str, count: int | None = None) -> str:
    s, old, new = str(s), str(old), str(new)
    _check_replace(s, old, new)
    return s.replace(old, new, -1 if count is None else count)


def _string(value: Any) -> str:
    _budget.get().size_of(value)
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
    _check_format(str(value), arguments)
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
        _check_sizes([indent * 100])
    _budget.get().size_of(value)
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
