"""Servers under the same loads by the same client, interleaved, in one run.

    python -m benches.serving --model CHECKPOINT [--backends tinyllm vllm llama.cpp] [--gguf FILE.gguf]
        [--llamacpp-python PYTHON] [--vllm-python PYTHON] [--quick] [--minutes 60]

All servers are started once; those that are not measured are stopped (SIGSTOP). Each load is put on every
server in turn, in random order. For each server C_ref of a bursty trace is found, and windows of the trace
are replayed at parts of it. The result is saved after each measurement; what fails is noted, and the rest
goes on. Writes JSON into ``benches/results/``, and tables, pictures and a page into a directory beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benches.arms import ROOT
from benches.compare import DOCS
from benches.gguf_of import gguf_of
from benches.report import fill_marks
from benches.serving.loads import Loads
from benches.serving.report import docs_lines, study_sections
from benches.serving.servers import Backend, llamacpp_server, tinyllm_server, vllm_server
from benches.serving.study import Study, say
from tinyllm.artifacts.resolve import open_model
from tinyllm.bench.plots.runs import write_report
from tinyllm.errors import ConfigError, TinyLLMError
from tinyllm.runner.device import default_num_threads

LEAST_CONTEXT = 128
NAMES = ("tinyllm", "vllm", "llama.cpp")


def main() -> None:
    """Measure, and write the results."""
    args = parse_args()
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        backends = installed(args)
    except (OSError, TinyLLMError) as error:
        raise SystemExit(f"benches.serving: {error}") from None
    stem = args.out / f"{time.strftime('%Y-%m-%d-%H%M')}-serving-{args.model.name}"
    study = Study(args, stem)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also then the servers are ended
    try:
        asyncio.run(study.run(backends, Loads(args, study).jobs()))
    except KeyboardInterrupt:
        say("interrupted: what was measured is kept")
    finally:
        study.save()
        title = f"Serving {args.model.name} in {args.dtype}"
        paths = write_report(stem, title, list(study_sections(study.result)))
        say(f"written: {stem.name}.json and {paths[0].relative_to(args.out)}")
    if args.docs:
        place = "serving", args.model.name, args.dtype
        fill_marks(DOCS, {place: list(docs_lines(study.result))})
    print(paths[1].read_text())


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.serving", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of a checkpoint")
    parser.add_argument("--backends", nargs="+", choices=NAMES, help="default: all that are installed")
    parser.add_argument(
        "--gguf",
        type=Path,
        help="the same model as a GGUF file, of any type; for llama.cpp, where it is no Qwen",
    )
    parser.add_argument(
        "--llamacpp-python", default=sys.executable, help="interpreter with llama-cpp-python[server]"
    )
    parser.add_argument("--vllm-python", default=sys.executable, help="interpreter with vllm")
    parser.add_argument("--vllm-eager", action="store_true", help="start vLLM without compiling")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=default_num_threads(), help="of every server")
    parser.add_argument("--context", type=int, default=2048, help="longest prompt with its answer")
    parser.add_argument("--num-prompts", type=int, default=300, help="requests of a window of the trace")
    parser.add_argument("--max-input-len", type=int, default=512, help="longest prompt of the trace")
    parser.add_argument("--max-output-len", type=int, default=128, help="longest answer of the trace")
    parser.add_argument("--windows", type=int, default=3, help="of the trace; 0 leaves it out")
    parser.add_argument(
        "--one-window", nargs="+", default=[], choices=NAMES, help="servers that replay only the first window"
    )
    parser.add_argument("--requests", type=int, default=64, help="of each other load, about")
    parser.add_argument("--rate", type=float, default=3.0, help="of short requests beside long prefill")
    parser.add_argument("--goodput", nargs="+", default=["ttft:1000", "tpot:100"], metavar="NAME:MS")
    parser.add_argument("--start-rate", type=float, default=1.0, help="of the search for C_ref")
    parser.add_argument("--tolerance", type=float, default=0.05, help="of C_ref")
    parser.add_argument("--probe-seconds", type=float, default=30.0)
    parser.add_argument("--probe-requests", type=int, default=60)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="loads whose name has one of these in it")
    parser.add_argument("--minutes", type=float, help="begin no measurement after so long")
    parser.add_argument("--job-minutes", type=float, default=30.0, help="longest measurement of one server")
    parser.add_argument("--quick", action="store_true", help="few requests and one window: to see it work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benches" / "results")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/benchmarks.md")
    args = parser.parse_args()
    if args.quick:
        args.num_prompts, args.windows, args.requests = min(args.num_prompts, 40), min(args.windows, 1), 8
        args.probe_seconds, args.probe_requests, args.tolerance = 5.0, 20, 0.25
    if args.context < LEAST_CONTEXT:
        parser.error(f"--context must be at least {LEAST_CONTEXT}")
    args.model, args.out = args.model.resolve(), args.out.resolve()
    return args


def installed(args: argparse.Namespace) -> list[Backend]:
    """Return the servers that there are, and say which are not. Raises `ConfigError` for those named."""
    model = open_model(str(args.model))
    args.context = min(args.context, model.config.max_position_embeddings)
    found = []
    for name in args.backends or NAMES:
        try:
            backend = make_backend(name, args, model.eos_token_ids)
            if not backend.is_installed():
                raise ConfigError(f"{name} is not installed where it was looked for")
            found.append(backend)
        except ConfigError as error:
            if args.backends:
                raise
            say(f"left out: {error}")
    return found


def make_backend(name: str, args: argparse.Namespace, end_tokens: Sequence[int]) -> Backend:
    """Return one of `NAMES`."""
    if name == "tinyllm":
        return tinyllm_server(args.model, args.dtype, args.threads, args.context)
    if name == "vllm":
        return vllm_server(
            args.vllm_python, args.model, args.dtype, args.threads, args.context, eager=args.vllm_eager
        )
    file = gguf_of(args.model, args.gguf and args.gguf.resolve(), args.dtype, args.out)
    return llamacpp_server(args.llamacpp_python, file, args.threads, args.context, end_tokens)


if __name__ == "__main__":
    main()
