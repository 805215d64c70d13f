"""From a workload to its rates and latencies: repeated, held against a canary, and against the limit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from tinyllm.bench.batch_run import BatchRun, Interruption, interrupt_batch, run_batch
from tinyllm.bench.calibrate import Calibration
from tinyllm.bench.environment import Disturbance
from tinyllm.bench.limit import Machine, ModelShape
from tinyllm.bench.stats import percentile
from tinyllm.bench.workload import Workload
from tinyllm.engine.async_engine import AsyncEngine

__all__ = ["Measured", "WorkloadMeter"]

DISTURBED: Final = 1.25
"""A repeat whose canary took this much longer than the best ever is measured again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One repeat of one workload."""

    prefill: BatchRun
    """The same prompts with one token out."""
    whole: BatchRun
    product_seconds: float
    """Of one step's matrix products for as many rows as there are requests, right beside it."""
    canary: float
    """The slower of the canaries before and after, over the best so far."""
    disturbance: dict[str, float | None]
    uncached: BatchRun | None = None
    """With a shared beginning: one token out, without the prefix cache."""
    interruption: Interruption | None = None

    @property
    def decode_seconds(self) -> float:
        """What all tokens but the first of each answer took."""
        return self.whole.total - self.prefill.total


class WorkloadMeter:
    """Measures workloads on one running engine."""

    def __init__(
        self, engine: AsyncEngine, calibration: Calibration, machine: Machine, shape: ModelShape
    ) -> None:
        self._engine = engine
        self._calibration = calibration
        self._machine = machine
        self._shape = shape
        self._best_canary = float("inf")

    async def measure(
        self, workload: Workload, repeats: int, seed: int, note: Callable[[str], None]
    ) -> dict[str, Any]:
        """Return the results of a workload, ready for JSON.

        A disturbed repeat is measured again, at most as often as there are repeats; what is disturbed still
        counts, and is told.
        """
        await run_batch(self._engine, workload.prompts(self._vocab, -1 - seed), 2)  # warm up
        samples: list[Measured] = []
        spare = repeats
        while len(samples) < repeats:
            sample = await self._once(workload, seed + len(samples) + repeats - spare)
            if sample.canary > DISTURBED and spare:
                spare -= 1
                note(f"{workload}: disturbed (canary {sample.canary:.2f}), measuring again")
                continue
            samples.append(sample)
        return self._report(workload, samples, repeats - spare)

    @property
    def _vocab(self) -> int:
        return self._engine.info.vocab_size

    async def _once(self, workload: Workload, seed: int) -> Measured:
        prompts, output_tokens = workload.prompts(self._vocab, seed), workload.output_tokens
        before, disturbance = await self._calibration.canary(), Disturbance()
        uncached = interruption = salts = None
        if workload.shared:
            salts = [f"shared {seed}"] * workload.batch
            own = [f"own {seed} {i}" for i in range(workload.batch)]
            uncached = await run_batch(self._engine, prompts, 1, salts=own)
            await run_batch(self._engine, [prompts[0][: workload.prompt_tokens]], 1, salts=salts[:1])
        prefill = await run_batch(self._engine, prompts, 1, salts=salts)
        whole = await run_batch(self._engine, prompts, output_tokens, salts=salts)
        if workload.intruder:
            intruder = workload.intruding_prompt(self._vocab, seed)
            interruption = await interrupt_batch(self._engine, prompts, output_tokens, intruder)
        products = await self._calibration.products(workload.batch)
        after = await self._calibration.canary()
        self._best_canary = min(self._best_canary, before, after)
        return Measured(
            prefill,
            whole,
            products,
            max(before, after) / self._best_canary,
            disturbance.since(),
            uncached,
            interruption,
        )

    def _report(self, workload: Workload, samples: Sequence[Measured], again: int) -> dict[str, Any]:
        tokens = workload.batch * (workload.output_tokens - 1)
        prompt_tokens = sum(map(len, workload.prompts(self._vocab, 0)))
        prefill = [prompt_tokens / sample.prefill.total for sample in samples]
        # Where a disturbance is larger than what so few tokens take, there is no rate.
        is_measured = all(sample.decode_seconds > 0 for sample in samples)
        decode = [tokens / sample.decode_seconds for sample in samples] if is_measured else None
        report = {
            "workload": str(workload),
            "requests": workload.batch,
            "prompt_tokens": workload.prompt_tokens,
            "output_tokens": workload.output_tokens,
            "prefill_tok_s": _rate(prefill),
            "decode_tok_s": decode and _rate(decode),
            "time_to_first_token": _spread([t for s in samples for t in s.whole.first_tokens]),
            "inter_token": _spread([gap for s in samples for gap in s.whole.gaps]),
            "event_loop_lag": _spread([lag for s in samples for lag in s.whole.loop_lags]),
            "cpu_seconds_per_1000_tokens": statistics.median(s.whole.cpu / tokens * 1000 for s in samples),
            "decode_step": decode and self._step(samples),
            "of_limit": self._of_limit(workload, prefill, decode),
            "repeats": len(samples),
            "measured_again": again,
            "canary": max(sample.canary for sample in samples),
            "is_disturbed": any(sample.canary > DISTURBED for sample in samples),
            "disturbance": [sample.disturbance for sample in samples],
        }
        if workload.shared:
            report["prefix_cache"] = _prefix_cache(samples)
        if workload.intruder:
            report["interruption"] = _interruption(samples)
        return report

    def _step(self, samples: Sequence[Measured]) -> dict[str, float]:
        """Return the mean decode step by part, and over its matrix products: the median of the repeats."""
        steps = [_decode_step(sample) for sample in samples]
        return {name: statistics.median(step[name] for step in steps) for name in steps[0]}

    def _of_limit(
        self, workload: Workload, prefill: Sequence[float], decode: Sequence[float] | None
    ) -> dict[str, float | None]:
        """Return what fraction of the machine's own limit the median rates are."""
        info = self._engine.info
        weight_bytes = getattr(torch, info.dtype).itemsize
        kv_bytes = getattr(torch, info.kv_cache_dtype).itemsize
        limit = self._shape.decode_rate(self._machine, workload, weight_bytes, kv_bytes)
        fractions: dict[str, float | None] = {"decode": None, "prefill": None}
        if decode:
            fractions["decode"] = statistics.median(decode) / limit
        if not workload.shared:
            limit = self._shape.prefill_rate(self._machine, workload, weight_bytes)
            fractions["prefill"] = statistics.median(prefill) / limit
        return fractions


def _decode_step(sample: Measured) -> dict[str, float]:
    """Return seconds of the mean step that the whole run has and the prefill alone has not."""
    steps = max(1, sample.whole.steps - sample.prefill.steps)
    parts = {
        part: (seconds - sample.prefill.step_parts[part]) / steps
        for part, seconds in sample.whole.step_parts.items()
    }
    total = sample.decode_seconds / steps
    return parts | {
        "between": total - sum(parts.values()),
        "total": total,
        "products": sample.product_seconds,
        "over_products": total / sample.product_seconds,
    }


def _prefix_cache(samples: Sequence[Measured]) -> dict[str, float]:
    cached = [statistics.median(sample.prefill.first_tokens) for sample in samples]
    uncached = [statistics.median(sample.uncached.first_tokens) for sample in samples if sample.uncached]
    return {
        "time_to_first_token": statistics.median(cached),
        "time_to_first_token_uncached": statistics.median(uncached),
        "ratio": statistics.median(a / b for a, b in zip(cached, uncached, strict=True)),
    }


def _interruption(samples: Sequence[Measured]) -> dict[str, Any]:
    found = [(sample.whole, sample.interruption) for sample in samples if sample.interruption]
    gaps = _spread([gap for _, each in found for gap in each.gaps])
    return {
        "time_to_first_token": statistics.median(each.first_token for _, each in found),
        "inter_token": gaps,
        "p99_ratio": gaps["p99"] / percentile([gap for run, _ in found for gap in run.gaps], 99),
        "others_went_on": all(each.others_went_on for _, each in found),
    }


def _rate(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "best": max(values)}


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return percentiles in seconds; zeros of nothing (a run too short for a timer to fire)."""
    if not seconds:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    return {"p50": percentile(seconds, 50), "p99": percentile(seconds, 99), "max": max(seconds)}
