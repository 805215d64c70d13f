"""Microseconds that `schedule` and `update_from_output` take with 64 running requests.

Run it with ``python -m benches.scheduler [--requests 64] [--steps 400] [--rounds 7] [--json]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request, StreamCredit
from tinyllm.core.scheduler import Scheduler, SchedulerConfig
from tinyllm.core.step import ModelRunnerOutput, SampledToken
from tinyllm.params import SamplingParams

BLOCK_SIZE = 16
PROMPT_TOKENS = 128


def measure(num_requests: int, num_steps: int) -> tuple[float, float]:
    """Return microseconds that `schedule` and `update_from_output` take, as means over steps of decoding."""
    max_model_len = PROMPT_TOKENS + num_steps + 1
    num_blocks = num_requests * -(-max_model_len // BLOCK_SIZE)
    config = SchedulerConfig(
        max_model_len=max_model_len,
        max_num_seqs=num_requests,
        max_num_batched_tokens=num_requests * PROMPT_TOKENS,
    )
    scheduler = Scheduler(config, KVCacheManager(num_blocks, BLOCK_SIZE))
    for number in range(num_requests):
        scheduler.add_request(
            Request(
                request_id=f"request-{number}",
                prompt_token_ids=list(range(number, number + PROMPT_TOKENS)),
                params=SamplingParams(),
                max_tokens=num_steps + 1,
                eos_token_ids=frozenset({2}),
                arrival_time=float(number),
                deadline=time.monotonic() + 3600,
                credit=StreamCredit(capacity=num_steps + 2),
            )
        )
    sampled = {request_id: SampledToken(7) for request_id in scheduler.requests}
    answer = ModelRunnerOutput(sampled)
    scheduler.update_from_output(scheduler.schedule(), answer)  # the prompts
    schedule_seconds = update_seconds = 0.0
    for _ in range(num_steps):
        started = time.perf_counter()
        output = scheduler.schedule()
        scheduled = time.perf_counter()
        updates = scheduler.update_from_output(output, answer)
        update_seconds += time.perf_counter() - scheduled
        schedule_seconds += scheduled - started
        if len(updates) != num_requests:
            raise RuntimeError("not every request got its token")
    return schedule_seconds / num_steps * 1e6, update_seconds / num_steps * 1e6


def main() -> None:
    """Print the median over some rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = [measure(options.requests, options.steps) for _ in range(options.rounds)]
    result = {
        "requests": options.requests,
        "schedule_us": round(statistics.median(schedule for schedule, _ in rounds), 1),
        "update_us": round(statistics.median(update for _, update in rounds), 1),
        "total_us": round(statistics.median(map(sum, rounds)), 1),
        "total_us_min": round(min(map(sum, rounds)), 1),
    }
    if options.json:
        print(json.dumps(result))
    else:
        print(
            f"{options.requests} running requests: schedule {result['schedule_us']} + update "
            f"{result['update_us']} = {result['total_us']} microseconds a step "
            f"(best {result['total_us_min']})"
        )


if __name__ == "__main__":
    main()
