"""Microseconds that building a step's flat batch takes, attention metadata included.

python -m benches.batch_building [--requests 64] [--context 200] [--steps 400]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from tinyllm.attention.backends import get_backend
from tinyllm.attention.metadata import KVCacheSpec
from tinyllm.core.request import Request
from tinyllm.core.step import ScheduledRequest
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.runner.batch import BatchBuilder

BLOCK_SIZE = 16


def scheduled(number: int, context: int) -> ScheduledRequest:
    """Return a request that decodes its next token at position ``context``."""
    request = Request(
        request_id=str(number),
        prompt_token_ids=list(range(context + 1)),
        params=SamplingParams(temperature=0).resolved(SamplingDefaults()),
        max_tokens=100,
        eos_token_ids=frozenset({2}),
        arrival_time=0.0,
    )
    blocks = context // BLOCK_SIZE + 1
    return ScheduledRequest(request, context, 1, list(range(number * blocks, (number + 1) * blocks)), True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()
    spec = KVCacheSpec(30, 3, 64, BLOCK_SIZE, torch.bfloat16, torch.device("cpu"))
    builder = BatchBuilder(get_backend("auto", spec), spec, 512)
    work = [scheduled(number, args.context) for number in range(args.requests)]
    times = []
    for _ in range(args.steps):
        started = time.perf_counter()
        builder.build(work)
        times.append(time.perf_counter() - started)
    print(f"{args.requests} requests: {statistics.median(times) * 1e6:.0f} microseconds a step")


if __name__ == "__main__":
    main()
