"""``tinyllm bench``: measurements of the engine, of a server, and of results. Picks the kind."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType
from typing import Any, Final

__all__ = ["KINDS", "add_parser", "run"]

KINDS: Final = {
    "throughput": ("engine", "tokens a second of the engine, and what this machine allows"),
    "latency": ("engine", "time to the first token and between tokens, of the engine"),
    "serve": ("serve", "a server's answers under load, as its clients see them"),
    "agree": ("agree", "whether other engines choose the same tokens"),
    "capacity": ("capacity", "the highest load that a server sustains, and how it does at parts of it"),
    "compare": ("compare", "two results side by side"),
    "report": ("report", "results of load on servers as tables, pictures and one page"),
}
"""Kind -> the module here that measures it, and one line of help."""


def add_parser(commands: Any) -> None:
    """Add the command's parser, and one for each kind."""
    parser = commands.add_parser(
        "bench",
        help="measure how fast a model runs here",
        description="Measure the engine or a server, and compare results.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for kind, (module, line) in KINDS.items():
        _module(module).add_parser(kinds, kind, line)


def run(args: argparse.Namespace) -> int:
    """Run one kind and return the exit code."""
    return int(_module(KINDS[args.kind][0]).run(args))


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tinyllm.cli.bench.{name}")
