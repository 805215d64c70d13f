"""A whole benchmark: the machine, a cold start, and every workload. Its report is a plain dict for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

from tinyllm.artifacts.model import ModelConfig
from tinyllm.artifacts.resolve import open_model
from tinyllm.bench.calibrate import Calibration
from tinyllm.bench.cold_start import FIRST, measure_cold_start
from tinyllm.bench.environment import environment
from tinyllm.bench.limit import ModelShape
from tinyllm.bench.measure import WorkloadMeter
from tinyllm.bench.workload import Workload
from tinyllm.config import EngineConfig
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.errors import ConfigError
from tinyllm.runner.device import default_num_threads, resolve_device, resolve_dtype

__all__ = ["SCHEMA", "fitting", "run_suite"]

SCHEMA: Final = 1
"""Of the report: goes up when a field changes its meaning."""


async def run_suite(
    config: EngineConfig,
    workloads: Sequence[Workload],
    *,
    repeats: int = 3,
    seed: int = 0,
    cold_start: bool = True,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure ``workloads`` on the CPU; ``note`` gets a line now and then. Times are in seconds.

    Raises `ConfigError` on a workload that the model has no room for, and what the engine raises.
    """
    model_config = _model_config(config)
    if resolve_device(config.device).type != "cpu":
        raise ConfigError("the benchmark knows the limits of CPUs only: use device='cpu'")
    _check_lengths(config, model_config, workloads)
    config = _with_room(config, workloads)
    shape = ModelShape.of(model_config)
    threads = config.num_threads or default_num_threads()
    report: dict[str, Any] = {"schema": SCHEMA, "engine": "tinyllm", "environment": environment(threads)}
    if cold_start:
        note("cold start")
        report["cold_start"] = measure_cold_start(*_largest(config, workloads))
    dtype = resolve_dtype(config.dtype, model_config.dtype)
    calibration = Calibration(shape, dtype, threads)
    try:
        note("calibration")
        calibrated = await calibration.result()
        report["calibration"] = calibrated.to_dict()
        report["results"] = []
        for is_shared in (False, True):
            mine = [workload for workload in workloads if workload.shared is is_shared]
            if not mine:
                continue
            async with AsyncEngine(config, enable_prefix_caching=is_shared) as engine:
                report["model"] = dataclasses.asdict(engine.info)
                meter = WorkloadMeter(engine, calibration, calibrated.machine, shape)
                for workload in mine:
                    note(str(workload))
                    report["results"].append(await meter.measure(workload, repeats, seed, note))
    finally:
        calibration.close()
    return report


def fitting(config: EngineConfig, workloads: Sequence[Workload]) -> list[Workload]:
    """Return those workloads that the model has room for."""
    limit = _context(config, _model_config(config))
    return [workload for workload in workloads if workload.length <= limit]


def _model_config(config: EngineConfig) -> ModelConfig:
    return open_model(
        config.model,
        revision=config.revision,
        token=config.hub_token,
        cache_dir=config.cache_dir,
        offline=config.offline,
        progress=config.progress,
    ).config


def _context(config: EngineConfig, model_config: ModelConfig) -> int:
    return min(
        config.max_model_len or model_config.max_position_embeddings, model_config.max_position_embeddings
    )


def _check_lengths(config: EngineConfig, model_config: ModelConfig, workloads: Sequence[Workload]) -> None:
    limit = _context(config, model_config)
    for workload in workloads:
        if workload.length > limit:
            raise ConfigError(
                f"{workload} needs {workload.length} tokens of context, and there are {limit}: "
                "leave it out, or make max_model_len larger"
            )


def _with_room(config: EngineConfig, workloads: Sequence[Workload]) -> EngineConfig:
    """Let all requests of a workload run at once."""
    batch = max(workload.batch + bool(workload.intruder) for workload in workloads)
    return EngineConfig.combine(config, {"max_num_seqs": max(batch, config.max_num_seqs)})


def _largest(config: EngineConfig, workloads: Sequence[Workload]) -> tuple[EngineConfig, Workload]:
    """Return the workload with most tokens, and a KV cache that just holds it, unless a size is given."""
    plain = [dataclasses.replace(workload, shared=False, intruder=0) for workload in workloads]
    largest = max(plain, key=lambda each: each.batch * each.length)
    if config.kv_cache_bytes is not None:
        return config, largest
    length = max(largest.length, FIRST.length)
    return EngineConfig.combine(config, {"max_model_len": length, "max_num_seqs": largest.batch}), largest
