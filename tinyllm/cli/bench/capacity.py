"""``tinyllm bench capacity``: the highest load that a server sustains, and how it does at parts of that."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllm.errors import ConfigError

if TYPE_CHECKING:
    from tinyllm.bench.capacity.study import CapacityOptions
    from tinyllm.bench.capacity.workload import Workload

__all__ = ["add_parser", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of the kind."""
    from tinyllm.bench.capacity.study import FRACTIONS, CapacityOptions
    from tinyllm.bench.serve.settings import DatasetOptions, ServerOptions
    from tinyllm.cli.options import add_options

    defaults = CapacityOptions()
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
    group.add_argument(
        "--good-ratio",
        type=float,
        default=defaults.good_ratio,
        metavar="X",
        help="part of the requests that must be good (default: %(default)s)",
    )
    group.add_argument(
        "--fractions",
        nargs="*",
        type=float,
        default=FRACTIONS,
        metavar="X",
        help=f"of C_ref to replay at (default: {' '.join(f'{each:g}' for each in FRACTIONS)})",
    )
    group.add_argument(
        "--windows", type=int, default=1, metavar="N", help="parts of the dataset to replay (default: 1)"
    )
    group.add_argument(
        "--start-rate",
        type=float,
        default=defaults.start,
        metavar="X",
        help="requests a second of the first probe (default: %(default)s)",
    )
    group.add_argument(
        "--tolerance",
        type=float,
        default=defaults.tolerance,
        metavar="X",
        help="end the search when C_ref is known to that part (default: %(default)s)",
    )
    group.add_argument(
        "--probe-seconds",
        type=float,
        default=defaults.probe_seconds,
        metavar="S",
        help="least length of a probe (default: %(default)s)",
    )
    group.add_argument(
        "--probe-requests",
        type=int,
        default=defaults.probe_requests,
        metavar="N",
        help="fewest requests of a probe (default: %(default)s)",
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="of arrivals without a trace (default: 1)"
    )
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there, also midway; - is standard output"
    )


def run(args: argparse.Namespace) -> int:
    """Search, replay, print the tables. 1 if no rate was sustained."""
    from tinyllm.bench.capacity.study import run_capacity
    from tinyllm.bench.capacity.table import capacity_lines

    to_output = args.json is not None and str(args.json) == "-"

    def save(report: dict[str, Any]) -> None:
        if args.json is not None and not to_output:
            args.json.write_text(json.dumps(report) + "\n", encoding="utf-8")

    report = asyncio.run(run_capacity(_workload(args), _options(args), note=_note, save=save))
    print(json.dumps(report) if to_output else "\n".join(capacity_lines(report)))
    return 0 if report["capacity"]["c_ref"] else 1


def _workload(args: argparse.Namespace) -> Workload:
    from tinyllm.bench.capacity.workload import Workload
    from tinyllm.bench.serve.planning import parse_goodput
    from tinyllm.bench.serve.settings import DatasetOptions, ServerOptions
    from tinyllm.cli.options import given_options

    if "window" in args:
        raise ConfigError(
            "--windows says how many windows are replayed, from the first on: leave out --window"
        )
    return Workload(
        ServerOptions(**given_options(args, ServerOptions)),
        DatasetOptions(**given_options(args, DatasetOptions)),
        burstiness=args.burstiness,
        limits=parse_goodput(args.goodput),
    )


def _options(args: argparse.Namespace) -> CapacityOptions:
    from tinyllm.bench.capacity.study import CapacityOptions
    from tinyllm.bench.serve.settings import DatasetOptions

    return CapacityOptions(
        good_ratio=args.good_ratio,
        start=args.start_rate,
        tolerance=args.tolerance,
        probe_seconds=args.probe_seconds,
        probe_requests=args.probe_requests,
        fractions=tuple(args.fractions),
        windows=args.windows,
        num_prompts=getattr(args, "num_prompts", DatasetOptions.model_fields["num_prompts"].default),
    )


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
