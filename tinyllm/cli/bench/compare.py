"""``tinyllm bench compare``: two results side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

__all__ = ["add_parser", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of the kind."""
    parser = kinds.add_parser(
        kind,
        help=line,
        description="Show two results of any kind of bench side by side: each figure, the ratio of the "
        "second to the first, and what differs about the runs: machine, model, commit, dataset.",
    )
    parser.add_argument("before", type=Path, metavar="A.json", help="a result")
    parser.add_argument("after", type=Path, metavar="B.json", help="another of the same kind")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Compare, and print."""
    from tinyllm.bench.compare import compare, comparison_lines, read_report

    comparison = compare(read_report(args.before), read_report(args.after))
    if args.json:
        print(json.dumps(comparison.to_json(), indent=2))
        return 0
    names = (args.before.stem, args.after.stem)
    if names[0] == names[1]:
        names = ("A", "B")
    print("\n".join(comparison_lines(comparison, names)))
    return 0
