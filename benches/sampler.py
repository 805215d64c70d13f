"""What sampling costs: milliseconds a step, for batches of requests with the same options.

    python benches/sampler.py [--rows 32] [--vocab 49152] [--threads 1] [--repeats 15]

Prints JSON: the environment, and for each case the median and the fastest of the repeats, and the median of
the CPU time, which a busy machine disturbs less. Logits are normal
with a spread of 2.5, for which the 256 best of 49,152 tokens hold about two thirds of the probability, or,
where a case says peaked, 6 (nearly all), rounded to bfloat16 as a model's are. Cases are run in turn, so
that a disturbance hits all of them alike.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from tinyllm.core.request import Request
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.runner.sampler import Sampler

DRAWN: dict[str, Any] = {"temperature": 0.8, "seed": 1}
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "greedy": (2.5, {"temperature": 0.0}),
    "greedy, 5 logprobs": (2.5, {"temperature": 0.0, "logprobs": 5}),
    "temperature": (2.5, DRAWN),
    "top_k 20, top_p 0.95": (2.5, DRAWN | {"top_k": 20, "top_p": 0.95}),
    "top_k 1000": (2.5, DRAWN | {"top_k": 1000}),
    "top_p 0.9, peaked": (6.0, DRAWN | {"top_p": 0.9}),
    "top_p 0.9": (2.5, DRAWN | {"top_p": 0.9}),
    "top_p 0.99, flat (whole sorts)": (1.0, DRAWN | {"top_p": 0.99}),
    "min_p 0.05": (2.5, DRAWN | {"min_p": 0.05}),
    "typical_p 0.9, peaked": (6.0, DRAWN | {"typical_p": 0.9}),
    "greedy, three penalties, 1024 tokens": (
        2.5,
        {"temperature": 0.0, "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    ),
    "greedy, 300 biases": (2.5, {"temperature": 0.0, "logit_bias": {str(i): 1.0 for i in range(300)}}),
    "greedy, a hook": (2.5, {"temperature": 0.0, "logits_processors": (lambda token_ids, logits: logits,)}),
}


def make_requests(rows: int, vocab: int, options: dict[str, Any]) -> list[Request]:
    """Return requests with 1,024 tokens each."""
    params = SamplingParams(**options).resolved(SamplingDefaults())
    requests = []
    for row in range(rows):
        prompt = torch.randint(0, vocab, (1000,), generator=torch.Generator().manual_seed(row)).tolist()
        request = Request(f"r{row}", prompt, params, 1000, frozenset({0}), 0.0)
        request.token_ids += prompt[:24]
        requests.append(request)
    return requests


def make_logits(rows: int, vocab: int, spread: float) -> torch.Tensor:
    """Return float32 logits ``[rows, vocab]`` as a bfloat16 model gives them."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(rows, vocab, generator=generator) * spread).bfloat16().float()


def environment(threads: int) -> dict[str, Any]:
    """Return what the numbers depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.processor(),
        "cores": len(cpu),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": threads,
        "commit": commit.stdout.strip(),
    }


def main() -> None:
    """Measure every case and print the result."""
    parser = argparse.ArgumentParser(description="Measure the sampler.")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with torch.inference_mode():
        result = measure(args.rows, args.vocab, args.repeats)
    report = {"rows": args.rows, "vocab": args.vocab, "environment": environment(args.threads), "ms": result}
    print(json.dumps(report, indent=2))


def measure(rows: int, vocab: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of a step of each case."""
    samplers = {name: Sampler(vocab, torch.device("cpu")) for name in CASES}
    requests = {name: make_requests(rows, vocab, options) for name, (_, options) in CASES.items()}
    logits = {spread: make_logits(rows, vocab, spread) for spread, _ in CASES.values()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for repeat in range(repeats + 1):
        for name, (spread, _) in CASES.items():
            row_logits = logits[spread].clone()
            started, cpu = time.perf_counter(), time.process_time()
            samplers[name].sample(row_logits, requests[name])
            cpu, wall = time.process_time() - cpu, time.perf_counter() - started
            if repeat:  # the first reads the options and counts the prompts
                times[name].append((wall * 1e3, cpu * 1e3))
    return {name: summary(each) for name, each in times.items()}


def summary(times: list[tuple[float, float]]) -> dict[str, float]:
    """Return what is reported of a case's ``(wall, cpu)`` milliseconds."""
    wall, cpu = zip(*times, strict=True)
    values = {"median": statistics.median(wall), "fastest": min(wall), "cpu": statistics.median(cpu)}
    return {name: round(value, 2) for name, value in values.items()}


if __name__ == "__main__":
    main()
