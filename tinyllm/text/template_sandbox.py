"""A Jinja environment for templates that nobody has vetted: no code execution, bounds on time and memory."""

from __future__ import annotations

from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2 import nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinyllm.text.template_budget import (
    ITEM_SIZE,
    LimitError,
    check_bits,
    check_format,
    check_product,
    checked_arguments,
    current_budget,
)
from tinyllm.text.template_charges import CHARGES, MAX_SOURCE_CHARACTERS, charged
from tinyllm.text.template_filters import GLOBALS, bounded_filters, bounded_tests

__all__ = ["SandboxEnvironment"]

_UNSAFE_METHODS: Final = frozenset(
    {"encode", "expandtabs", "format_map", "maketrans", "to_bytes", "translate"}
)


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
        del self.globals["lipsum"]
        self.filters = bounded_filters(self.filters) | CHARGES
        self.tests = bounded_tests(self.tests)
        self.globals |= GLOBALS

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also refuse the methods of text and numbers that grow without a check."""
        if isinstance(obj, (str, int)) and attr in _UNSAFE_METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a macro or a method, within the budget."""
        budget = current_budget()
        budget.charge(ITEM_SIZE)
        method = getattr(__obj, "__wrapped__", __obj)
        if isinstance(method, (BuiltinMethodType, MethodType)) and isinstance(method.__self__, str):
            args = checked_arguments(method.__self__, method.__name__, args, kwargs)
        return budget.keep(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Do an operation that can grow, if its result will not be too large."""
        budget = current_budget()
        if isinstance(left, str) and operator == "%":
            check_format(left, right)
        elif operator == "*":
            check_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * right)
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
        changed = charged(template)
        changed.set_environment(self)
        return changed


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's text for training; here it is only its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


@pass_context
def _written(_: Context, value: Any) -> Any:
    """Count a value that the template writes out."""
    budget = current_budget()
    if not isinstance(value, str):
        budget.size_of(value)
        value = str(value)
    return budget.keep(value)
