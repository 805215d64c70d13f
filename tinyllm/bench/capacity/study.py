"""`run_capacity`: finds C_ref of a workload on a server, then replays its windows at parts of that rate."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from tinyllm.bench.capacity.search import Capacity, Probe, find_capacity, waiting_limit
from tinyllm.bench.capacity.settings import CapacityOptions
from tinyllm.bench.capacity.workload import Workload
from tinyllm.bench.serve.load import Plan, run_load
from tinyllm.bench.serve.records import RequestRecord, RunResult
from tinyllm.bench.stats import tail
from tinyllm.errors import ConfigError

__all__ = ["cell_of", "forecast", "replay", "run_capacity", "search"]

Note = Callable[[str], None]
Save = Callable[[dict[str, Any]], None]


async def run_capacity(
    workload: Workload,
    options: CapacityOptions,
    *,
    note: Note = lambda _: None,
    save: Save = lambda _: None,
) -> dict[str, Any]:
    """Search and replay; ``save`` gets the report so far after each run, ``note`` a line now and then.

    Raises `ConfigError` for limits that let a request wait for ever, and what a plan raises.
    """
    report = await search(workload, options, note=note, save=save)
    c_ref = report["capacity"]["c_ref"]
    if c_ref is None:
        return report
    note(f"replays: about {forecast(workload, options, c_ref) / 60:.0f} minutes")
    for window in range(options.windows):
        for fraction in options.fraction:
            note(f"window {window} at {fraction:g} of C_ref")
            report["levels"].append(await replay(workload, c_ref, fraction, window))
            save(report)
    return report


async def search(
    workload: Workload,
    options: CapacityOptions,
    *,
    note: Note = lambda _: None,
    save: Save = lambda _: None,
) -> dict[str, Any]:
    """Return a report that has C_ref, and no replays yet. Raises as `run_capacity` does."""
    waiting_limit(workload.limits)
    metadata: dict[str, Any] = {"capacity": options.model_dump(mode="json")}
    so_far = Capacity()

    def report_of(found: Capacity) -> dict[str, Any]:
        return {
            "schema": 1,
            "kind": "capacity",
            "metadata": metadata,
            "limits_ms": workload.limits.to_json(),
            "capacity": found.to_json(workload.limits),
            "levels": [],
        }

    async def probe(rate: float) -> Probe:
        count = max(options.probe_requests, math.ceil(rate * options.probe_seconds))
        note(f"probe of {count} requests at {rate:.3g}/s")
        plan = await workload.plan(rate, count)
        if len(plan.samples) < count:
            raise ConfigError(
                f"the file has {len(plan.samples)} prompts, but a probe at {rate:.3g}/s needs {count}: take "
                "a larger file, or lower --probe-seconds and --probe-requests"
            )
        asked = {"dataset": plan.metadata["dataset"] | {"num_prompts": workload.num_prompts}}
        metadata.update({**plan.metadata, **asked}, target=plan.target.to_json())
        so_far.probes.append(await _probe(plan, rate, options.good_ratio))
        save(report_of(so_far))
        return so_far.probes[-1]

    found = await find_capacity(probe, start=options.start_rate, tolerance=options.tolerance)
    note(_found(found))
    report = report_of(found)
    save(report)
    return report


async def replay(workload: Workload, c_ref: float, fraction: float, window: int) -> dict[str, Any]:
    """Return one level of a report: a window at a part of C_ref."""
    rate = fraction * c_ref
    result = await run_load(await workload.plan(rate, workload.num_prompts, window))
    place = {"name": f"{fraction:g}/{window}", "fraction": fraction, "window": window, "rate": rate}
    return place | cell_of(result)


def forecast(workload: Workload, options: CapacityOptions, c_ref: float) -> float:
    """Return about how many seconds the replays take."""
    return options.windows * sum(workload.num_prompts / (each * c_ref) for each in options.fraction)


def cell_of(result: RunResult) -> dict[str, Any]:
    """Return a run as a larger report has it: without its requests, but with the tail of their gaps."""
    gaps = [gap * 1e3 for record in result.requests if record.ok for gap in record.gaps]
    curve = [(round(value, 4), share) for value, share in tail(gaps)]
    return result.to_json(detailed=False) | {"itl_tail": curve, "queue_ms": _queue_ms(result)}


async def _probe(plan: Plan, rate: float, good_ratio: float) -> Probe:
    """Run a plan, but no longer than until its outcome is clear."""
    count = sum(len(sample.turns) for sample in plan.samples)
    may_be_bad = count - math.ceil(good_ratio * count)
    bad = failed = 0

    def judge(record: RequestRecord) -> None:
        nonlocal bad, failed
        bad += not record.good(plan.limits)
        failed += not record.ok
        if bad > may_be_bad or failed:
            run.cancel()

    seconds = len(plan.samples) / rate
    run = asyncio.create_task(run_load(plan, on_finished=judge))
    try:
        result = await run
    except asyncio.CancelledError:
        if not (bad > may_be_bad or failed):  # it is we who are cancelled
            raise
        return Probe(rate, count, seconds, sustained=False, good_ratio=None, failed=failed)
    finally:
        run.cancel()
    summary = result.summary
    sustained = summary["failed"] == 0 and summary["good_ratio"] >= good_ratio
    return Probe(rate, count, seconds, sustained, summary["good_ratio"], summary["failed"])


def _queue_ms(result: RunResult) -> float | None:
    """Return the mean time in the server's queue in ms, where the server says it."""
    before, after = result.server_metrics["before"], result.server_metrics["after"]
    for name in after:
        if not name.endswith("request_queue_time_seconds_sum"):
            continue
        count = name.removesuffix("sum") + "count"
        requests = after.get(count, 0.0) - before.get(count, 0.0)
        if requests > 0:
            return (after[name] - before.get(name, 0.0)) / requests * 1e3
    return None


def _found(found: Capacity) -> str:
    if found.sustained is None:
        return f"no rate was sustained, down to {found.probes[-1].rate:.3g}/s"
    error = found.search_error()
    above = "no end was found" if error is None else f"{found.not_sustained:.4g}/s was not"
    return f"C_ref is {found.sustained:.4g} requests/s; {above}"
