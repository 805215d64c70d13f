"""The figures of `tinyllm bench serve` beside those of ``vllm bench serve``, on the same server.

    python -m benches.serving.crosscheck --model CHECKPOINT --vllm-python PYTHON [--rounds 5]
        [--streams 1 4 16 32]

Both clients put the same kind of load on one ``tinyllm serve``, in turn, each first in every other round: a
closed loop of prompts of 128 tokens, answers of 64. The prompts are drawn alike, but none twice, as the
server has a cache. Writes JSON into ``benches/results/`` and prints the table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benches.arms import ROOT
from benches.serving.servers import MODEL_NAME, RunningServer, tinyllm_server
from benches.serving.study import say
from tinyllm.bench.environment import environment
from tinyllm.bench.serve.load import Plan, run_load
from tinyllm.bench.serve.planning import make_plan
from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions
from tinyllm.bench.table import markdown_table
from tinyllm.runner.device import default_num_threads

PROMPT, ANSWER = 128, 64
REQUESTS_PER_STREAM, LEAST_REQUESTS = 6, 48
CONTEXT = 2048
FIGURES = {
    "output tokens/s": ("output_throughput", "output_throughput"),
    "TTFT mean, ms": ("ttft_ms.mean", "mean_ttft_ms"),
    "TPOT mean, ms": ("tpot_ms.mean", "mean_tpot_ms"),
    "ITL mean, ms": ("itl_ms.mean", "mean_itl_ms"),
    "E2EL mean, ms": ("e2el_ms.mean", "mean_e2el_ms"),
}
"""What both report, and what each calls it."""


def main() -> None:
    """Measure, write the result, and print the table."""
    args = parse_args()
    threads = default_num_threads()
    server = RunningServer(tinyllm_server(args.model, "bfloat16", threads, CONTEXT), Path(os.devnull))
    runs: list[dict[str, Any]] = []
    try:
        server.wake()
        for number in range(args.rounds):
            for streams in args.streams:
                say(f"round {number}, {streams} streams")
                ours = load_of(server, args.model, streams, seed=2 * number)
                theirs = load_of(server, args.model, streams, seed=2 * number + 1)
                clients: dict[str, Callable[[], dict[str, Any]]] = {
                    "tinyllm": partial(ask_ours, server, ours),
                    "vllm": partial(ask_vllm, server, theirs, args),
                }
                order = list(clients) if number % 2 else list(reversed(clients))
                figures = {name: clients[name]() for name in order}
                runs.append({"round": number, "streams": streams} | figures)
    finally:
        server.close()
    result = {"schema": 1, "kind": "crosscheck", "environment": environment(threads), "runs": runs}
    (ROOT / "benches" / "results" / "crosscheck.json").write_text(json.dumps(result, indent=1) + "\n")
    print("\n".join(table(runs)))


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benches.serving.crosscheck")
    parser.add_argument("--model", type=Path, required=True, help="directory of a checkpoint")
    parser.add_argument("--vllm-python", required=True, help="interpreter with vllm")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.model = args.model.resolve()
    return args


def load_of(server: RunningServer, model: Path, streams: int, seed: int) -> Plan:
    """Return a closed loop of so many streams."""
    dataset = DatasetOptions(
        num_prompts=max(LEAST_REQUESTS, REQUESTS_PER_STREAM * streams),
        num_warmups=streams,
        random_input_len=PROMPT,
        random_output_len=ANSWER,
        tokenizer=str(model),
        seed=seed,
    )
    return asyncio.run(make_plan(server.options(), dataset, ArrivalOptions(max_concurrency=streams)))


def ask_ours(server: RunningServer, load: Plan) -> dict[str, float]:
    """Return the figures of one run of `tinyllm bench serve`."""
    summary = asyncio.run(run_load(load)).summary
    return {name: _member(summary, ours) for name, (ours, _) in FIGURES.items()}


def ask_vllm(server: RunningServer, load: Plan, args: argparse.Namespace) -> dict[str, float]:
    """Return the figures of one run of ``vllm bench serve``, without a warm-up of its own."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        lines = [json.dumps({"prompt": sample.turns[0].prompt}) for sample in load.samples]
        prompts.write_text("\n".join(lines) + "\n")
        options = {
            "backend": "openai",
            "base-url": f"http://127.0.0.1:{server.port}",
            "model": MODEL_NAME,
            "tokenizer": args.model,
            "dataset-name": "custom",
            "dataset-path": prompts,
            "custom-output-len": ANSWER,
            "max-concurrency": load.arrivals.max_concurrency,
            "num-prompts": len(lines),
            "temperature": 0,  # as the other does: to draw at random costs the server time
            "percentile-metrics": "ttft,tpot,itl,e2el",
            "result-dir": folder,
            "result-filename": "result.json",
        }
        command = [args.vllm_python, "-m", "vllm.entrypoints.cli.main", "bench", "serve"]
        command += ["--ignore-eos", "--skip-chat-template", "--save-result"]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        log = subprocess.run(
            command, env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False
        )
        if log.returncode:
            raise SystemExit(log.stderr[-2000:])
        found = json.loads((Path(folder) / "result.json").read_text())
    return {name: found[theirs] for name, (_, theirs) in FIGURES.items()}


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the medians of the rounds, and how far apart they are."""
    rows = []
    for streams in sorted({run["streams"] for run in runs}):
        for name in FIGURES:
            ours, theirs = (
                statistics.median(run[client][name] for run in runs if run["streams"] == streams)
                for client in ("tinyllm", "vllm")
            )
            rows.append(
                (f"{streams} streams, {name}", f"{ours:,.1f}", f"{theirs:,.1f}", f"{ours / theirs - 1:+.1%}")
            )
    return list(markdown_table(("", "tinyllm bench serve", "vllm bench serve", "difference"), rows))


def _member(summary: dict[str, Any], path: str) -> float:
    value: Any = summary
    for part in path.split("."):
        value = value[part]
    return float(value)


if __name__ == "__main__":
    main()
