"""A report of `run_capacity` as lines of text that are also Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tinyllm.bench.capacity.search import ATTEMPTS
from tinyllm.bench.table import markdown_table

__all__ = ["RUN_HEADER", "capacity_lines", "capacity_words", "gathered", "run_row"]

_NUMBER: Final = re.compile(r"\d[\d.,]*")
RUN_HEADER: Final = (
    *("answered/s", "failed", "good", "output tok/s", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99"),
    *("ITL p99 ms", "queue ms", "in flight", "client lag p99 ms"),
)
"""Of `run_row`."""


def capacity_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report: how C_ref was found, and what happens at parts of it."""
    yield from capacity_words(report)
    yield ""
    probes = [
        (
            f"{probe['rate']:.4g}",
            str(probe["requests"]),
            f"{probe['seconds']:.0f}",
            "" if probe["good_ratio"] is None else f"{probe['good_ratio']:.3f}",
            str(probe["failed"]),
            "sustained" if probe["sustained"] else "not sustained",
        )
        for probe in report["capacity"]["probes"]
    ]
    yield from markdown_table(("probe, requests/s", "requests", "seconds", "good", "failed", ""), probes)
    if report["levels"]:
        rows = [
            (f"{level['fraction']:g}", str(level["window"]), *run_row(level)) for level in report["levels"]
        ]
        yield ""
        yield from markdown_table(("of C_ref", "window", *RUN_HEADER), rows)
    for line in gathered(warning for level in report["levels"] for warning in level["warnings"]):
        yield f"warning: {line}"


def capacity_words(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was found in sentences."""
    found, options = report["capacity"], report["metadata"]["capacity"]
    within = ", ".join(f"{name} {limit:g} ms" for name, limit in report["limits_ms"].items())
    yield (
        f"A rate is sustained when a probe of at least {options['probe_seconds']:g} s and "
        f"{options['probe_requests']} requests has no failure and {options['good_ratio']:.0%} of them "
        f"within {within}; it is not when {ATTEMPTS} probes were not."
    )
    if found["c_ref"] is None:
        yield "No rate was sustained."
        return
    line = f"C_ref = {found['c_ref']:.4g} requests/s"
    if found["search_error"] is not None:
        line += f"; {found['not_sustained']:.4g} was not sustained (+{found['search_error']:.1%})"
    yield line + f"; by the length of a probe it may be too high by {found['length_error']:.1%}."


def gathered(warnings: Iterable[str]) -> list[str]:
    """Return warnings once each, whatever their numbers, and say how often they came."""
    alike: dict[str, list[str]] = {}
    for warning in warnings:
        alike.setdefault(_NUMBER.sub("", warning), []).append(warning)
    return [
        f"{each[0]} (and {len(each) - 1} more like it)" if each[1:] else each[0] for each in alike.values()
    ]


def run_row(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of one run, as `cell_of` keeps it."""
    summary = run["summary"]

    def latency(name: str, percentile: str) -> str:
        figures = summary[f"{name}_ms"]
        return "" if figures is None else f"{figures[percentile]:,.1f}"

    return (
        f"{summary['request_throughput'] or 0:.3g}",
        str(summary["failed"]),
        "" if summary["good_ratio"] is None or not summary["limits_ms"] else f"{summary['good_ratio']:.3f}",
        f"{summary['output_throughput'] or 0:,.0f}",
        latency("ttft", "p50"),
        latency("ttft", "p99"),
        latency("tpot", "p50"),
        latency("tpot", "p99"),
        latency("itl", "p99"),
        "" if run.get("queue_ms") is None else f"{run['queue_ms']:,.1f}",
        str(summary["peak_in_flight"]),
        f"{run['client_lag']['p99_ms']:.2f}",
    )
