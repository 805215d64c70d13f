"""One batch of requests through `AsyncEngine`, and what its readers saw."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.engine.stream import TokenStream
from tinyllm.metrics import STEP_PARTS
from tinyllm.params import SamplingParams

__all__ = ["BatchRun", "Interruption", "interrupt_batch", "run_batch"]

LAG_INTERVAL: Final = 0.01
TOKENS_BEFORE_INTRUDER: Final = 4


@dataclass(slots=True)
class BatchRun:
    """Times in seconds."""

    total: float = 0.0
    """From the first request until the last token."""
    first_tokens: list[float] = field(default_factory=list)
    """From a request until its first token."""
    gaps: list[float] = field(default_factory=list)
    """Between two tokens of an answer."""
    loop_lags: list[float] = field(default_factory=list)
    """How late the event loop was for a timer of 10 ms."""
    cpu: float = 0.0
    """CPU time of the whole process."""
    steps: int = 0
    step_parts: dict[str, float] = field(default_factory=dict)
    """Time of all steps, by `STEP_PARTS`."""


@dataclass(frozen=True, slots=True)
class Interruption:
    """A long prompt that comes while others decode."""

    first_token: float
    """From its arrival until its first token, in seconds."""
    gaps: list[float]
    """Between the tokens of the others meanwhile."""
    others_went_on: bool
    """Whether the others were still decoding at its first token."""


async def run_batch(
    engine: AsyncEngine,
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    *,
    salts: Sequence[str] | None = None,
) -> BatchRun:
    """Send all prompts at once, greedily and without an early end, and read all answers."""
    params = _params(output_tokens)
    run = BatchRun()
    before = _step_times(engine)
    lag = asyncio.create_task(_watch_loop(run.loop_lags))
    cpu, started = time.process_time(), time.perf_counter()
    try:
        streams = [
            engine.generate(prompt, params, cache_salt=salt)
            for prompt, salt in zip(prompts, salts or [""] * len(prompts), strict=True)
        ]
        arrivals = await asyncio.gather(*(_read(stream) for stream in streams))
        run.total = time.perf_counter() - started
    finally:
        lag.cancel()
    run.cpu = time.process_time() - cpu
    run.first_tokens = [times[0] - started for times in arrivals]
    run.gaps = [after - before for times in arrivals for before, after in itertools.pairwise(times)]
    after = _step_times(engine)
    run.steps = round(after.pop("count") - before.pop("count"))
    run.step_parts = {part: after[part] - before[part] for part in STEP_PARTS}
    return run


async def interrupt_batch(
    engine: AsyncEngine, prompts: Sequence[Sequence[int]], output_tokens: int, intruder: Sequence[int]
) -> Interruption:
    """Do as `run_batch`, and send ``intruder`` when every answer has some tokens."""
    streams = [engine.generate(prompt, _params(output_tokens)) for prompt in prompts]
    arrivals = await asyncio.gather(*(_read(stream, TOKENS_BEFORE_INTRUDER) for stream in streams))
    readers = [asyncio.create_task(_read(stream)) for stream in streams]
    started = time.perf_counter()
    ended = (await _read(engine.generate(intruder, _params(1))))[0]
    others_went_on = not any(reader.done() for reader in readers)
    later = await asyncio.gather(*readers)
    gaps = [
        after - before
        for first, rest in zip(arrivals, later, strict=True)
        for before, after in itertools.pairwise(first + rest)
        if after > started and before < ended
    ]
    return Interruption(ended - started, gaps, others_went_on)


def _params(output_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)


async def _read(stream: TokenStream, at_most: float = math.inf) -> list[float]:
    """Read a stream, to its end or until there are so many tokens; return when each came."""
    times: list[float] = []
    while len(times) < at_most and (piece := await anext(stream, None)) is not None:
        times += [time.perf_counter()] * len(piece.token_ids)
    return times


async def _watch_loop(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + LAG_INTERVAL
        await asyncio.sleep(LAG_INTERVAL)
        lags.append(time.perf_counter() - due)


def _step_times(engine: AsyncEngine) -> dict[str, float]:
    """Return the seconds of all steps so far by part, and their ``count``."""
    times = dict.fromkeys((*STEP_PARTS, "count"), 0.0)
    for family in engine.registry.collect():
        if family.name != "tinyllm:step_time_seconds":
            continue
        for sample in family.samples:
            part = sample.labels["part"]
            if sample.name.endswith("_sum"):
                times[part] = sample.value
            elif sample.name.endswith("_count") and part == "forward":
                times["count"] = sample.value
    return times
