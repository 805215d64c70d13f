"""``tinyllm bench capacity``: the highest load that a server sustains, and how it does at parts of that."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from tinyllm.cli.bench.output import check_outputs, draw, note, save, show
from tinyllm.errors import ConfigError

__all__ = ["add_parser", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of the kind."""
    from tinyllm.bench.capacity.settings import CapacityOptions
    from tinyllm.bench.serve.settings import DatasetOptions, ServerOptions
    from tinyllm.cli.options import add_options

    parser = kinds.add_parser(
        kind,
        help=line,
        description="Find C_ref, the highest request rate of a workload that a running server sustains "
        "within limits: the rate doubles until it is too high, then the gap is halved. Then replay the "
        "workload at parts of it. A trace is stretched to each rate; other datasets come as a gamma process. "
        "The tables go to standard output. Needs pip install 'tinyllm[bench]'.",
    )
    add_options(parser.add_argument_group("server"), ServerOptions)
    add_options(parser.add_argument_group("dataset"), DatasetOptions)
    group = parser.add_argument_group("capacity")
    group.add_argument(
        "--goodput",
        nargs="+",
        required=True,
        metavar="NAME:MS",
        help="limits of a good request, such as ttft:1000 tpot:100; ttft or e2el must be among them",
    )
    add_options(group, CapacityOptions)
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there, also midway; - is standard output"
    )
    group.add_argument(
        "--report",
        type=Path,
        metavar="PATH",
        help="write pictures and a page there, as bench report does",
    )


def run(args: argparse.Namespace) -> int:
    """Search, replay, print the tables. 1 if no rate was sustained."""
    from tinyllm.bench.capacity.settings import CapacityOptions
    from tinyllm.bench.capacity.study import run_capacity
    from tinyllm.bench.capacity.table import capacity_lines
    from tinyllm.bench.capacity.workload import Workload
    from tinyllm.bench.serve.planning import parse_goodput
    from tinyllm.bench.serve.settings import DatasetOptions, ServerOptions
    from tinyllm.cli.options import given_options

    if "window" in args:
        raise ConfigError(
            "--windows says how many windows are replayed, from the first on: leave out --window"
        )
    check_outputs(args.json, args.report)
    options = CapacityOptions(**given_options(args, CapacityOptions))
    dataset = DatasetOptions(**given_options(args, DatasetOptions))
    if options.windows > 1 and dataset.has_one_window:
        raise ConfigError(f"--windows: --dataset-name {dataset.dataset_name} has one window, the file")
    workload = Workload(
        ServerOptions(**given_options(args, ServerOptions)),
        dataset,
        burstiness=options.burstiness,
        limits=parse_goodput(args.goodput),
    )
    report = asyncio.run(run_capacity(workload, options, note=note, save=partial(save, path=args.json)))
    show(report, capacity_lines(report), args.json)
    if args.report is not None:
        name = report["metadata"]["target"]["model"]
        page, _ = draw([(name, report)], f"Load on {name}", args.report)
        note(f"wrote {page}")
    return 0 if report["capacity"]["c_ref"] else 1
