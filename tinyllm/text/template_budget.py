"""What one rendering of a chat template may use, and checks before an operation that could make much."""

from __future__ import annotations

import re
import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from jinja2 import TemplateError

__all__ = [
    "ITEM_SIZE",
    "MAX_SECONDS",
    "Budget",
    "LimitError",
    "charge_for",
    "check_bits",
    "check_format",
    "check_join",
    "check_product",
    "check_replace",
    "check_sizes",
    "checked_arguments",
    "current_budget",
    "spend",
]

MAX_SECONDS: Final = 0.5
"""Of processor time: waiting for a busy machine does not count."""
MAX_SIZE: Final = 16 << 20
"""Of all values that a template makes, in characters."""
SIZE_PER_INPUT: Final = 64
"""How much that grows with each character of the messages."""
ITEM_SIZE: Final = 16
"""What a place in a list or mapping counts, in characters."""
MAX_SIZE_ARGUMENT: Final = 10_000
"""Of widths, counts and precisions."""
MAX_INTEGER_BITS: Final = 16_384

_T = TypeVar("_T")

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


def current_budget() -> Budget:
    """Return the budget of the rendering that goes on in this context."""
    return _budget.get()


def charge_for(*values: object) -> None:
    """Count an operation that looks at all of these values, which may share parts and be looked at often."""
    budget = current_budget()
    budget.charge(budget.size_of(*values))


def check_bits(bits: int) -> None:
    """Refuse an integer of so many bits, if that is too many."""
    if bits > MAX_INTEGER_BITS:
        raise LimitError("it makes too large a number")


def check_product(left: Any, right: Any) -> None:
    """Refuse a product that would be too large a number, text or list."""
    if isinstance(left, int) and isinstance(right, int):
        check_bits(left.bit_length() + right.bit_length())
    for value, times in ((left, right), (right, left)):
        if isinstance(value, (str, list, tuple)) and isinstance(times, int):
            current_budget().plan(len(value) * times)


def check_format(text: str, arguments: Any) -> None:
    """Refuse wide fields, and more text than fits if every field is as long as all arguments together."""
    if _WIDE_FORMAT.search(text):
        raise LimitError("it formats with too large a width")
    budget = current_budget()
    fields = text.count("{") + text.count("%")
    budget.plan(len(text) + fields * budget.size_of(arguments))


def check_replace(text: str, old: str, new: str) -> None:
    """Refuse a replacement whose result would be too long."""
    times = text.count(old) if old else len(text) + 1
    current_budget().plan(len(text) + times * len(new))


def checked_arguments(
    text: str, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Check a call of a method of ``text``, and return its arguments (a list where there was a generator)."""
    if any(isinstance(value, int) and abs(value) > current_budget().max_value for value in args):
        raise LimitError("it makes too large a value")
    if method == "format_map":
        raise TemplateError("format_map is not available to chat templates")
    if method == "format":
        if _NESTED_FIELD.search(text):
            raise LimitError("it formats with a width that is not written out")
        check_format(text, [*args, *kwargs.values()])
    elif method in ("center", "ljust", "rjust", "zfill"):
        check_sizes(args)
    elif method == "replace" and len(args) >= 2 and all(isinstance(value, str) for value in args[:2]):
        check_replace(text, args[0], args[1])
    elif method == "join" and len(args) == 1:
        items = list(args[0])
        check_join(text, items)
        return (items,)
    return args


def check_join(separator: str, items: list[Any]) -> None:
    """Refuse to join what would be too long."""
    budget = current_budget()
    budget.plan(budget.size_of(*items) + len(separator) * len(items))


def check_sizes(values: Iterable[object]) -> None:
    """Refuse large widths, counts and precisions."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_SIZE_ARGUMENT:
            raise LimitError(f"it uses a size of more than {MAX_SIZE_ARGUMENT:,}")
