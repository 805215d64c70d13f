"""A chat template's source, changed before it is compiled: what repeats, builds or compares is charged for.

Jinja's own sandbox keeps templates from reaching Python's internals, but lets them run and grow for ever, and
a thread that runs one cannot be stopped. So every loop body and every macro begins with a charge to a
`Budget`, and every expression that builds a new value, or compares values, goes through one. What a template
does between two charges is bounded by the size of its values, and that is bounded too.
"""

from __future__ import annotations

from typing import Any, Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from tinyllm.text.template_budget import ITEM_SIZE, LimitError, charge_for, current_budget

__all__ = ["CHARGES", "MAX_SOURCE_CHARACTERS", "charged"]

MAX_SOURCE_CHARACTERS: Final = 100_000
MAX_SOURCE_NODES: Final = 20_000
MAX_SOURCE_DEPTH: Final = 200


def charged(template: nodes.Template) -> nodes.Template:
    """Check the shape of a parsed template, and put the charges in. Raises `LimitError`."""
    _check_shape(template)
    changed: nodes.Template = _Charges().visit(template)
    return changed


class _Charges(NodeTransformer):
    """Puts a charge at the start of what repeats, and around what builds a value or compares some."""

    def _charged_body(self, node: nodes.For | nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        size = sum(len(data.data) for data in node.find_all(nodes.TemplateData)) + ITEM_SIZE
        self.generic_visit(node)
        charge = _filter(nodes.Const(size, lineno=node.lineno), "charge it")
        node.body.insert(0, nodes.ExprStmt(charge, lineno=node.lineno))
        return node

    def _kept(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "keep it")

    def visit_For(self, node: nodes.For) -> nodes.Node:
        if isinstance(node.test, nodes.Expr):
            node.test = _filter(node.test, "tick it")
        return self._charged_body(node)

    visit_Macro = visit_CallBlock = visit_Block = _charged_body
    visit_List = visit_Dict = _kept

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        return self._kept(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        return self._kept(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "concat it")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _filter(node.expr, "weigh it")
        for operand in node.ops:
            operand.expr = _filter(operand.expr, "weigh it")
        return node


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


def _charge(size: int) -> str:
    current_budget().charge(size)
    return ""


def _keep(value: Any) -> Any:
    return current_budget().keep(value)


def _concat(values: list[Any]) -> str:
    budget = current_budget()
    budget.plan(budget.size_of(*values))
    return budget.keep("".join(map(str, values)))


def _weigh(value: Any) -> Any:
    """Count a value that is compared, which may take as long as it is large."""
    charge_for(value)
    return value


def _tick(value: Any) -> Any:
    """Count a step that makes nothing."""
    current_budget().charge(ITEM_SIZE)
    return value


# Names with a space, so that no template can call them.
CHARGES: Final = {
    "charge it": _charge,
    "keep it": _keep,
    "concat it": _concat,
    "weigh it": _weigh,
    "tick it": _tick,
}
"""The filters that do the charging."""
