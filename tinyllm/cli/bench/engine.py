"""``tinyllm bench throughput`` and ``latency``: the engine, beside what the machine allows."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

from tinyllm.cli.bench.output import check_outputs, note, show
from tinyllm.errors import ConfigError

__all__ = ["add_parser", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of one of the two kinds, which differ in workloads and in what is shown first."""
    from tinyllm.cli.options import add_engine_options

    parser = kinds.add_parser(
        kind,
        help=line,
        description=f"Measure {kind} of the engine on random prompts, greedily, and compare it "
        "with what this machine allows, measured in the same process. The report goes to standard output.",
    )
    parser.add_argument(
        "--workloads",
        nargs="+",
        metavar="BxPxN",
        help="requests x prompt tokens x output tokens, such as 8x64x64; 8x1024x32+shared shares the "
        "prompts' beginning, 8x64x256+4096 sends a prompt of 4096 tokens midway",
    )
    parser.add_argument(
        "--repeat", type=int, default=3, metavar="N", help="times each is measured (default: 3)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the prompts (default: 0)")
    parser.add_argument(
        "--no-cold-start", action="store_true", help="measure no cold start and no peak memory"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there; - is standard output"
    )
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print the tables, write the JSON."""
    from tinyllm.engine.executor import prepare_for_torch

    prepare_for_torch()  # as an engine does when it is the first to load torch
    from tinyllm.bench.suite import fitting, run_suite
    from tinyllm.bench.table import report_lines
    from tinyllm.bench.workload import LATENCY, THROUGHPUT, Workload
    from tinyllm.cli.options import engine_config

    if "enable_prefix_caching" in args:
        raise ConfigError("the workload says whether prefixes are cached: write BxPxN or BxPxN+shared")
    if args.repeat < 1:
        raise ConfigError("--repeat must be at least 1")
    check_outputs(args.json)
    config = engine_config(args)
    if args.workloads:
        workloads = [Workload.parse(text) for text in args.workloads]
    else:
        defaults = THROUGHPUT if args.kind == "throughput" else LATENCY
        workloads = fitting(config, defaults)
        for workload in set(defaults) - set(workloads):
            note(f"{workload} is left out: the model has no room for {workload.length} tokens")
    report = {"kind": args.kind} | asyncio.run(
        run_suite(
            config,
            workloads,
            repeats=args.repeat,
            seed=args.seed,
            cold_start=not args.no_cold_start,
            note=note,
        )
    )
    show(report, report_lines(report, args.kind), args.json)
    return 0
