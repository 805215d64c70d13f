"""``tinyllm bench report``: results of load on servers as tables, pictures and one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tinyllm.cli.bench.output import draw

__all__ = ["add_parser", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of the kind."""
    parser = kinds.add_parser(
        kind,
        help=line,
        description="Make tables, pictures (SVG and PNG) and one HTML page that needs no network, from "
        "results of bench serve and bench capacity. Runs of one server belong to one series: name it with "
        "NAME=FILE.json, once for each file, else the file's name is taken. Needs pip install "
        "'tinyllm[bench]'.",
    )
    parser.add_argument("results", nargs="+", metavar="[NAME=]FILE.json", help="results")
    parser.add_argument(
        "--out", type=Path, default=Path("report"), metavar="PATH", help="directory (default: report)"
    )
    parser.add_argument("--title", default="Load on a server", metavar="TEXT", help="of the page")


def run(args: argparse.Namespace) -> int:
    """Write all files, and say where the page is."""
    from tinyllm.bench.compare import read_report

    results = []
    for text in args.results:
        name, _, file = text.rpartition("=")
        path = Path(file)
        results.append((name or path.stem, read_report(path)))
    for path in draw(results, args.title, args.out):
        print(path)
    return 0
