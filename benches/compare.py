"""tinyllm and its peers on the same workloads, interleaved, in one run.

    python -m benches.compare --model CHECKPOINT [--llamacpp-python PYTHON] [--gguf FILE.gguf]
        [--vllm-python PYTHON] [--dtypes bfloat16 float32] [--blocks 5] [--workloads 1x32x64 ...]

Peers that are not installed are left out, and that is said. Every block measures each engine once, in
random order, with the same prompts; what counts is the median over blocks of the ratio within a block. A
canary before and after each measurement shows what else the machine did; a disturbed measurement is repeated
before anybody looks at it. Writes JSON, Markdown and pictures into ``benches/results/``, and with ``--docs``
the tables into ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches.arms import ENVIRONMENT, ROOT, Arm
from benches.gguf_of import gguf_of
from benches.picture import bars
from benches.report import fill_docs, markdown
from tinyllm.bench.environment import environment
from tinyllm.bench.gguf_as import GGUF_TYPES
from tinyllm.bench.workload import THROUGHPUT, Workload
from tinyllm.engine.executor import prepare_for_torch
from tinyllm.errors import ConfigError

DOCS = ROOT / "docs" / "benchmarks.md"
ONLY_TINYLLM = ("8x64x256+4096", "8x1024x32+shared")


def main() -> None:
    """Compare, and write the results."""
    args = parse_args()
    prepare_for_torch()  # before torch is loaded
    from benches.interleave import interleave
    from tinyllm.runner.device import default_num_threads

    threads = args.threads or default_num_threads()
    run: dict[str, Any] = {
        "environment": environment(threads),
        "model": args.model.name,
        "blocks": args.blocks,
        "dtypes": {},
    }
    args.out.mkdir(parents=True, exist_ok=True)
    for dtype in args.dtypes:
        arms = installed(find_arms(args, dtype))
        results = asyncio.run(
            interleave(
                arms,
                args.model,
                dtype,
                args.workloads,
                blocks=args.blocks,
                threads=threads,
                log=args.out / "workers.log",
            )
        )
        if not args.only_comparison:
            results["tinyllm"] = engine_alone(args, dtype, threads)
        run["dtypes"][dtype] = results
    stem = args.out / f"{time.strftime('%Y-%m-%d-%H%M')}-{args.model.name}"
    Path(f"{stem}.json").write_text(json.dumps(run, indent=1) + "\n")
    Path(f"{stem}.md").write_text(markdown(run))
    for dtype, results in run["dtypes"].items():
        title = f"Decode, tokens a second ({args.model.name}, {dtype})"
        rates = {each["workload"]: each["decode_tok_s"] for each in results["workloads"]}
        bars(f"{stem.name}-{dtype}", title, rates).write(args.out)
    if args.docs:
        fill_docs(DOCS, run)
    print(markdown(run))
    say(f"written: {stem}.json, .md, .svg and .png")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.compare", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of a checkpoint")
    parser.add_argument("--gguf", type=Path, help="the same model as a GGUF file, of any type; for llama.cpp")
    parser.add_argument("--llamacpp-python", default=sys.executable, help="interpreter with llama-cpp-python")
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter with vllm")
    parser.add_argument("--transformers-python", default=sys.executable, help="interpreter with transformers")
    parser.add_argument("--dtypes", nargs="+", choices=tuple(GGUF_TYPES), default=list(GGUF_TYPES))
    parser.add_argument("--workloads", nargs="+", type=Workload.parse, help="BxPxN ...")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--threads", type=int, help="of every engine (default: physical cores)")
    parser.add_argument("--without", nargs="+", default=[], metavar="NAME", help="engines to leave out")
    parser.add_argument("--only-comparison", action="store_true", help="leave out tinyllm's own report")
    parser.add_argument("--out", type=Path, default=ROOT / "benches" / "results")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/benchmarks.md")
    args = parser.parse_args()
    if args.workloads is None:
        args.workloads = [workload for workload in THROUGHPUT if not workload.shared]
    args.model, args.out = args.model.resolve(), args.out.resolve()
    args.gguf = args.gguf and args.gguf.resolve()
    args.workloads = [str(workload) for workload in args.workloads]
    return args


def find_arms(args: argparse.Namespace, dtype: str) -> list[Arm]:
    """Return every engine that could take part."""
    arms = [
        Arm("tinyllm", sys.executable, "tinyllm_engine", args.model, "tinyllm"),
        Arm("transformers", args.transformers_python, "transformers_generate", args.model, "transformers"),
        Arm(
            "transformers continuous",
            args.transformers_python,
            "transformers_continuous",
            args.model,
            "transformers",
        ),
        Arm("vllm", args.vllm_python, "vllm_cpu", args.model, "vllm"),
    ]
    arms = [arm for arm in arms if arm.name not in args.without]
    llamacpp = None if "llama.cpp" in args.without else llamacpp_arm(args, dtype)
    return arms if llamacpp is None else [*arms, llamacpp]


def llamacpp_arm(args: argparse.Namespace, dtype: str) -> Arm | None:
    """Return llama.cpp with its file, which is made if need be; None, and said, where there is none."""
    arm = Arm("llama.cpp", args.llamacpp_python, "llamacpp", args.out, "llama_cpp")
    if not arm.is_installed():
        say("llama.cpp is not installed, and left out")
        return None
    try:
        return dataclasses.replace(arm, model=gguf_of(args.model, args.gguf, dtype, args.out))
    except ConfigError as error:
        if args.gguf is not None:
            raise
        say(f"llama.cpp is left out: {error}")
        return None


def installed(arms: Sequence[Arm]) -> list[Arm]:
    """Return those that are installed, and say which are not."""
    there = [arm for arm in arms if arm.is_installed()]
    for arm in set(arms) - set(there):
        say(f"{arm.name} is not installed, and left out")
    return there


def engine_alone(args: argparse.Namespace, dtype: str, threads: int) -> dict[str, Any]:
    """Return tinyllm's own report: latencies, the parts of a step, memory, prefix cache, mixed load."""
    report = args.out / "engine.json"
    command = [sys.executable, "-m", "tinyllm", "bench", "latency", "--model", str(args.model)]
    command += ["--dtype", dtype, "--num-threads", str(threads), "--no-progress", "--json", str(report)]
    workloads = [*args.workloads, *ONLY_TINYLLM]
    subprocess.run(
        [*command, "--workloads", *workloads], check=True, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    )
    engine: dict[str, Any] = json.loads(report.read_text())
    report.unlink()
    return engine


def say(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
