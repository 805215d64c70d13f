"""What many streams cost: the event loop's lag, and readers beside readers that stopped.

    python -m benches.streaming [--model MODEL] [--tokens 128] [--rounds 5] [--json FILE]

1. Event-loop lag while 16 streams decode: a task that sleeps 5 ms at a time notes how much later it wakes.
2. The 99th percentile between two tokens of 16 readers: alone, and beside 16 streams whose readers stopped.
   The two arms alternate; the figure is the median of the rounds' ratios.
3. From `close` of a running request to its blocks being free, in steps of the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from tinyllm import AsyncEngine, SamplingParams
from tinyllm.bench.environment import environment

STREAMS = 16


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def params(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)


async def read(engine: AsyncEngine, number: int, tokens: int, gaps: list[float]) -> None:
    """Read one stream, noting the time between its pieces."""
    last = None
    async for _ in engine.generate([100 + number] * 32, params(tokens)):
        now = time.perf_counter()
        if last is not None:
            gaps.append(now - last)
        last = now


async def watch_loop(lags: list[float], interval: float = 0.005) -> None:
    while True:
        before = time.perf_counter()
        await asyncio.sleep(interval)
        lags.append(time.perf_counter() - before - interval)


async def arm(engine: AsyncEngine, tokens: int, *, stopped: int) -> tuple[float, float, float]:
    """Return the p99 gap between tokens, the p99 and the largest lag of the loop, in milliseconds."""
    idle = [engine.generate([7000 + i] * 32, params(400)) for i in range(stopped)]
    while num_stalled(engine) < stopped:
        await asyncio.sleep(0.05)
    gaps: list[float] = []
    lags: list[float] = []
    watcher = asyncio.create_task(watch_loop(lags))
    await asyncio.gather(*(read(engine, number, tokens, gaps) for number in range(STREAMS)))
    watcher.cancel()
    for stream in idle:
        stream.close()
    while engine.num_requests:
        await asyncio.sleep(0.01)
    return percentile(gaps, 0.99) * 1e3, percentile(lags, 0.99) * 1e3, max(lags) * 1e3


def num_stalled(engine: AsyncEngine) -> float:
    value = engine.registry.get_sample_value(
        "tinyllm:num_requests_stalled", {"model_name": engine.info.model, "engine": "0"}
    )
    return value or 0.0


async def run(args: argparse.Namespace) -> dict[str, Any]:
    async with AsyncEngine(
        model=args.model, max_num_seqs=2 * STREAMS, max_model_len=1024, stream_buffer_size=4, progress=False
    ) as engine:
        await arm(engine, 16, stopped=0)  # warm up
        plain, beside = [], []
        for _ in range(args.rounds):
            plain.append(await arm(engine, args.tokens, stopped=0))
            beside.append(await arm(engine, args.tokens, stopped=STREAMS))
        info = engine.info
    return {
        "benchmark": "streaming",
        "environment": environment(),
        "model": info.model,
        "dtype": info.dtype,
        "streams": STREAMS,
        "tokens": args.tokens,
        "rounds": args.rounds,
        "inter_token_p99_ms": statistics.median(each[0] for each in plain),
        "inter_token_p99_beside_stopped_ms": statistics.median(each[0] for each in beside),
        "ratio": statistics.median(b[0] / a[0] for a, b in zip(plain, beside, strict=True)),
        "loop_lag_p99_ms": statistics.median(each[1] for each in plain),
        "loop_lag_max_ms": max(each[2] for each in plain),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    result = json.dumps(asyncio.run(run(args)), indent=2)
    print(result)
    if args.json:
        args.json.write_text(result + "\n")


if __name__ == "__main__":
    main()
