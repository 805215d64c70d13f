"""The measuring itself: all engines in one dtype, in blocks, each block in another order."""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benches.arms import ENVIRONMENT, Arm, ArmFailedError, Worker
from tinyllm.artifacts.resolve import open_model
from tinyllm.bench.calibrate import Calibration
from tinyllm.bench.environment import Disturbance
from tinyllm.bench.limit import ModelShape
from tinyllm.bench.measure import DISTURBED
from tinyllm.bench.stats import ratio
from tinyllm.bench.workload import Workload

COLD_STARTS = 3
RETRIES = 2


async def interleave(
    arms: Sequence[Arm],
    model: Path,
    dtype: str,
    workloads: Sequence[str],
    *,
    blocks: int,
    threads: int,
    log: Path,
) -> dict[str, Any]:
    """Measure all arms on all workloads in one dtype."""
    worker_environment = ENVIRONMENT | {"BENCH_THREADS": str(threads)}
    colds = cold_starts(arms, dtype, worker_environment, log)
    shape = ModelShape.of(open_model(str(model)).config)
    calibration = Calibration(shape, getattr(torch, dtype), threads)
    workers: dict[str, Worker] = {}
    failures: dict[str, str] = {}
    try:
        machine = await calibration.machine()
        for arm in arms:
            try:
                workers[arm.name] = Worker(arm, dtype, worker_environment, log)
            except ArmFailedError as error:
                failures[arm.name] = str(error)
                say(str(error))
        bench = Interleaved(workers, failures, calibration, blocks)
        results = [await bench.measure(workload) for workload in workloads]
        width = getattr(torch, dtype).itemsize
        for result in results:
            workload = Workload.parse(result["workload"])
            result["limit_tok_s"] = {
                "decode": shape.decode_rate(machine, workload, width, width),
                "prefill": shape.prefill_rate(machine, workload, width),
            }
        return {
            "machine": asdict(machine),
            "engines": {name: worker.about for name, worker in workers.items()},
            "failures": failures,
            "cold_start_seconds": colds,
            "peak_memory_bytes": {name: worker.peak_memory() for name, worker in workers.items()},
            "workloads": results,
        }
    finally:
        calibration.close()
        for worker in workers.values():
            worker.close()


def cold_starts(
    arms: Sequence[Arm], dtype: str, worker_environment: Mapping[str, str], log: Path
) -> dict[str, float]:
    """Return seconds from the start of a process to its first token, the median; nothing else is loaded."""
    times: dict[str, list[float]] = {}
    for _ in range(COLD_STARTS):
        for arm in arms:
            say(f"cold start of {arm.name}")
            try:
                worker = Worker(arm, dtype, worker_environment, log)
            except ArmFailedError:
                continue
            times.setdefault(arm.name, []).append(worker.first_token_seconds)
            worker.close()
    return {name: statistics.median(each) for name, each in times.items()}


class Interleaved:
    """Measures workers in turn: blocks of all of them, each block in another order."""

    def __init__(
        self, workers: Mapping[str, Worker], failures: dict[str, str], calibration: Calibration, blocks: int
    ) -> None:
        self._workers, self._failures = workers, failures
        self._calibration = calibration
        self._blocks = blocks
        self._random = random.Random(0)
        self._best_canary = float("inf")

    async def measure(self, workload: str) -> dict[str, Any]:
        """Return rates and ratios of one workload."""
        samples: dict[str, list[dict[str, Any]]] = {name: [] for name in self._workers}
        products = []
        for block in range(self._blocks):
            order = [name for name in samples if name not in self._failures]
            self._random.shuffle(order)
            for name in order:
                try:
                    sample = await self._undisturbed(name, workload, block)
                    if sample["decode_tok_s"] is not None:  # or it has no figures of this workload
                        samples[name].append(sample)
                except ArmFailedError as error:
                    self._failures[name] = f"{workload}: {error}"
                    say(self._failures[name])
            products.append(await self._calibration.products(int(workload.split("x")[0])))
        return summary(workload, samples, products)

    async def _undisturbed(self, name: str, workload: str, seed: int) -> dict[str, Any]:
        """Measure one worker, again if the machine was busy with something else."""
        for tries_left in range(RETRIES, -1, -1):
            before, disturbance = await self._calibration.canary(), Disturbance()
            sample = self._workers[name].measure(workload, seed)
            after = await self._calibration.canary()
            self._best_canary = min(self._best_canary, before, after)
            sample["canary"] = max(before, after) / self._best_canary
            sample |= disturbance.since()
            rate = sample["decode_tok_s"]
            words = "no rate" if rate is None else f"{rate:.1f} tok/s"
            say(f"{workload} {name}: {words}, canary {sample['canary']:.2f}")
            if (rate is not None and sample["canary"] <= DISTURBED) or not tries_left:
                break
        return sample


def summary(
    workload: str, samples: Mapping[str, Sequence[dict[str, Any]]], products: Sequence[float]
) -> dict[str, Any]:
    """Return medians by engine, and what tinyllm is over each of the others."""
    complete = {name: each for name, each in samples.items() if len(each) == len(products)}
    ratios: dict[str, dict[str, Any]] = {}
    for key in ("decode_tok_s", "prefill_tok_s"):
        rates = {name: [sample[key] for sample in each] for name, each in complete.items()}
        ours = rates.pop("tinyllm", None)
        ratios[key] = (
            {} if ours is None else {name: asdict(ratio(ours, theirs)) for name, theirs in rates.items()}
        )
    return {
        "workload": workload,
        "decode_tok_s": medians(complete, "decode_tok_s"),
        "prefill_tok_s": medians(complete, "prefill_tok_s"),
        "cpu_seconds": medians(complete, "cpu_seconds"),
        "decode_ratios": ratios["decode_tok_s"],
        "prefill_ratios": ratios["prefill_tok_s"],
        "product_seconds": statistics.median(products),
        "disturbed": sum(sample["canary"] > DISTURBED for each in complete.values() for sample in each),
        "samples": samples,
    }


def medians(samples: Mapping[str, Sequence[dict[str, Any]]], key: str) -> dict[str, float]:
    """Return the median of one number by engine."""
    return {name: statistics.median(sample[key] for sample in each) for name, each in samples.items()}


def say(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)
