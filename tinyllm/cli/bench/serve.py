"""``tinyllm bench serve``: puts load on a server that speaks OpenAI's API, and measures how it answers."""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllm.cli.bench.output import check_outputs, draw, is_output
from tinyllm.errors import ConfigError

if TYPE_CHECKING:
    from tinyllm.bench.serve.load import Plan
    from tinyllm.bench.serve.records import RunResult

__all__ = ["add_parser", "plan_of", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of the kind."""
    from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions, ServerOptions
    from tinyllm.cli.options import add_options

    parser = kinds.add_parser(
        kind,
        help=line,
        description="Put load on a running server that speaks OpenAI's API, tinyllm or another, and measure "
        "latencies and throughput as its clients see them. The figures go to standard output. Lengths are in "
        "the tokens of the server's model: its /tokenize counts them, or --tokenizer does, or the prompts "
        "are token ids below --vocab-size. Needs pip install 'tinyllm[bench]'.",
    )
    add_options(parser.add_argument_group("server"), ServerOptions)
    add_options(parser.add_argument_group("dataset"), DatasetOptions)
    add_options(parser.add_argument_group("arrivals"), ArrivalOptions)
    _add_output_options(parser.add_argument_group("figures"))


def _add_output_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--goodput",
        nargs="+",
        default=(),
        metavar="NAME:MS",
        help="what a good request stays within, such as ttft:200 tpot:50 e2el:5000",
    )
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="NAMES",
        help="latencies to show (default: ttft,tpot,itl,e2el)",
    )
    group.add_argument(
        "--metric-percentiles", default="90,99", metavar="P,P", help="of each latency (default: 90,99)"
    )
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there; - is standard output"
    )
    group.add_argument(
        "--save-result", action="store_true", help="write a JSON file named after model, arrivals and time"
    )
    group.add_argument(
        "--save-detailed", action="store_true", help="with every request, its chunks' times too"
    )
    group.add_argument("--result-dir", type=Path, metavar="PATH", help="where --save-result writes")
    group.add_argument(
        "--result-filename", metavar="NAME", help="instead of the name that --save-result makes"
    )
    group.add_argument(
        "--metadata", nargs="+", default=(), metavar="KEY=VALUE", help="kept in the JSON, under metadata"
    )
    group.add_argument(
        "--report",
        type=Path,
        metavar="PATH",
        help="write pictures and one HTML page there, as bench report does",
    )
    group.add_argument(
        "--plot-timeline",
        action="store_true",
        help="the same, into a directory beside the JSON and named like it; saves a result",
    )
    group.add_argument("--disable-tqdm", action="store_true", help="show no progress bar")


def run(args: argparse.Namespace) -> int:
    """Put the load, write the JSON, print the figures, draw them. 1 if no request was answered.

    Ctrl-C ends the load; what was answered until then is kept, before it is raised again.
    """
    from tinyllm.bench.serve.table import result_lines

    names, percents = _shown(args)
    check_outputs(args.json, args.report)
    if args.save_detailed and not (args.json or _is_saved(args)):
        raise ConfigError("--save-detailed says what is in the file: give --json FILE or --save-result, too")
    result = asyncio.run(_measure(args))
    paths = _write(args, result)
    if is_output(args.json):
        print(json.dumps(result.to_json(detailed=args.save_detailed)))
    else:
        print("\n".join(result_lines(result, metrics=names, percentiles=percents)))
    directories = [] if args.report is None else [args.report]
    if args.plot_timeline:
        directories.append(paths[-1].with_name(f"{paths[-1].name.removesuffix('.json')}-report"))
    for directory in directories:
        name = result.metadata["target"]["model"]
        page, _ = draw([(name, result.to_json())], f"Load on {name}", directory)
        print(f"wrote {page}", file=sys.stderr)
    if result.metadata["interrupted"]:
        raise KeyboardInterrupt
    return 0 if result.summary["completed"] else 1


async def plan_of(args: argparse.Namespace) -> Plan:
    """Return the load that the flags describe, once the server is ready. Raises `ConfigError`."""
    from tinyllm.bench.serve.planning import make_plan, pair, parse_goodput
    from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions, ServerOptions
    from tinyllm.cli.options import given_options

    return await make_plan(
        ServerOptions(**given_options(args, ServerOptions)),
        DatasetOptions(**given_options(args, DatasetOptions)),
        ArrivalOptions(**given_options(args, ArrivalOptions)),
        limits=parse_goodput(args.goodput),
        percentiles=_shown(args)[1],
        metadata=dict(pair("--metadata", text) for text in args.metadata),
    )


async def _measure(args: argparse.Namespace) -> RunResult:
    from tqdm import tqdm

    from tinyllm.bench.serve.load import run_load

    plan = await plan_of(args)
    if len(plan.samples) < plan.metadata["dataset"]["num_prompts"]:
        print(f"the file has only {len(plan.samples)} prompts to measure", file=sys.stderr)
    total = sum(len(sample.turns) for sample in plan.samples)
    hidden = True if args.disable_tqdm else None  # None: hidden where there is no terminal
    with tqdm(total=total, unit=" requests", disable=hidden, mininterval=0.5, leave=False) as bar:
        return await run_load(plan, on_finished=lambda record: bar.update(), keep_if_interrupted=True)


def _shown(args: argparse.Namespace) -> tuple[list[str], list[float]]:
    """Return which latencies, and which of their percentiles, are shown."""
    from tinyllm.bench.serve.metrics import LATENCIES

    names = args.percentile_metrics.split(",")
    if unknown := [name for name in names if name not in LATENCIES]:
        raise ConfigError(f"--percentile-metrics takes {','.join(LATENCIES)} (got {unknown[0][:40]!r})")
    try:
        percents = [float(text) for text in args.metric_percentiles.split(",")]
    except ValueError:
        percents = [-1.0]
    if not all(0 <= percent <= 100 for percent in percents):
        raise ConfigError("--metric-percentiles takes numbers from 0 to 100, such as 50,90,99")
    return names, percents


def _write(args: argparse.Namespace, result: RunResult) -> list[Path]:
    """Write the result to all files asked for; return them."""
    from tinyllm.bench.serve.records import write_result

    paths = [args.json] if args.json is not None and not is_output(args.json) else []
    if _is_saved(args) or (args.plot_timeline and not paths):
        directory = args.result_dir or Path()
        directory.mkdir(parents=True, exist_ok=True)
        paths.append(directory / (args.result_filename or _file_name(result)))
    for path in paths:
        write_result(path, result, detailed=args.save_detailed)
        print(f"wrote {path}", file=sys.stderr)
    return paths


def _is_saved(args: argparse.Namespace) -> bool:
    """Whether a file is written beside that of ``--json``."""
    return bool(args.save_result or args.result_dir or args.result_filename)


def _file_name(result: RunResult) -> str:
    target, arrivals = result.metadata["target"], result.metadata["arrivals"]
    load = f"{arrivals['request_rate']}qps"
    if arrivals["max_concurrency"]:
        load += f"-concurrency{arrivals['max_concurrency']}"
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    model = re.sub(r"[^\w.-]+", "-", target["model"])
    return f"{target['backend']}-{load}-{model}-{now}.json"
