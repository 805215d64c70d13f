"""The serving study side by side: tables of all servers, then every run of each; and in the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from benches.serving.cells import ALONE, BESIDE
from tinyllm.bench.plots.page import Section, Table
from tinyllm.bench.plots.runs import runs_of, sections, words_of
from tinyllm.bench.table import environment_line, markdown_table

OURS = "tinyllm"
FEW = 4
"""More loads than this are counted, not named."""
LATENCIES = (
    ("ttft_ms", "p50", "Time to first token, median"),
    ("ttft_ms", "p99", "Time to first token, p99"),
    ("tpot_ms", "p99", "Time per output token after it, p99 of requests"),
    ("itl_ms", "p99", "Gap between two tokens, p99"),
    ("e2el_ms", "p50", "Whole answer, median"),
)


def study_sections(result: Mapping[str, Any]) -> Iterator[Section]:
    """Yield what the page shows."""
    backends = result["backends"]
    yield Section("Which load each sustains", words_of(result, ""), capacity_table(backends))
    yield Section(
        "Output tokens a second",
        ["More is better; the last column is tinyllm over the best other server."],
        side_by_side(backends, "output_throughput"),
    )
    for figure, percentile, words in LATENCIES:
        yield Section(
            f"{words}, ms",
            ["Less is better; the last column is tinyllm over the best other server."],
            side_by_side(backends, figure, percentile),
        )
    yield Section(
        "Short requests beside long prefill",
        ["Time to first token of the short requests alone at a rate; then with one in ten a long prompt."],
        disturbance(backends),
    )
    yield from sections(
        "Every run", runs_of(result, ""), [environment_line(result["metadata"]["environment"])]
    )
    failures = [
        f"{name}, {what}: {words}"
        for name, found in backends.items()
        for what, words in found["failures"].items()
    ]
    if failures:
        yield Section("What failed or was left out", failures)


def docs_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the documentation has of it: everything side by side, without the single runs."""
    backends = result["backends"]
    yield environment_line(result["metadata"]["environment"])
    yield from _titled("", capacity_table(backends))
    yield from _titled("Output tokens a second", side_by_side(backends, "output_throughput"))
    for figure, percentile, words in LATENCIES:
        yield from _titled(f"{words}, ms", side_by_side(backends, figure, percentile))
    yield from _titled("TTFT of short requests, alone and beside long prefill", disturbance(backends))
    yield from _titled("Windows of the trace", replays(backends))
    yield ""
    if lags := _lags(backends):
        usual, most = statistics.median(lags), max(lags)
        yield f"The client's own lag, p99 of a run: {usual:.1f} ms in the median run, {most:.1f} at most."
    for name, found in backends.items():
        for words in dict.fromkeys(found["failures"].values()):
            loads = [what for what, why in found["failures"].items() if why == words]
            yield f"{name}, {', '.join(loads) if len(loads) < FEW else f'{len(loads)} loads'}: {words}."


def _titled(title: str, table: Table | None) -> Iterator[str]:
    if table is not None:
        yield ""
        if title:
            yield f"{title}:"
            yield ""
        yield from markdown_table(table.header, table.rows)


def _lags(backends: Mapping[str, Any]) -> list[float]:
    """Return the 99th percentile of each run, in ms."""
    runs = [run for found in backends.values() for run in (*found["cells"], *_levels(found))]
    return [run["client_lag"]["p99_ms"] for run in runs]


def _levels(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [] if found["capacity"] is None else found["capacity"]["levels"]


def replays(backends: Mapping[str, Any]) -> Table | None:
    """Return what each server did at parts of its own C_ref, over all windows."""
    rows = []
    for name, found in backends.items():
        levels: dict[float, list[Mapping[str, Any]]] = {}
        for level in _levels(found):
            levels.setdefault(level["fraction"], []).append(level)
        for fraction, runs in levels.items():
            summaries = [run["summary"] for run in runs]
            queues = [run["queue_ms"] for run in runs if run["queue_ms"] is not None]
            rows.append(
                (
                    f"{name} at {fraction:g} C_ref",
                    f"{runs[0]['rate']:.3g}",
                    str(sum(summary["completed"] for summary in summaries)),
                    str(sum(summary["failed"] for summary in summaries)),
                    f"{min(summary['good_ratio'] for summary in summaries):.3f}",
                    f"{max(summary['ttft_ms']['p50'] for summary in summaries):,.0f}",
                    f"{max(summary['ttft_ms']['p99'] for summary in summaries):,.0f}",
                    f"{max(summary['tpot_ms']['p99'] for summary in summaries):,.0f}",
                    f"{statistics.mean(queues):,.0f}" if queues else "",
                )
            )
    header = (
        "",
        "requests/s",
        "answered",
        "failed",
        "good, least",
        "TTFT p50, most",
        "p99",
        "TPOT p99",
        "queue",
    )
    return Table(header, rows) if rows else None


def capacity_table(backends: Mapping[str, Any]) -> Table | None:
    """Return C_ref of each server, and how many requests are good at parts of it."""
    rows = []
    for name, found in backends.items():
        report = found["capacity"]
        if report is None or report["capacity"]["c_ref"] is None:
            continue
        levels: dict[float, list[float]] = {}
        for level in report["levels"]:
            levels.setdefault(level["fraction"], []).append(level["summary"]["good_ratio"])
        worst = ", ".join(f"{fraction:g}: {min(ratios):.3f}" for fraction, ratios in levels.items())
        rows.append((name, f"{report['capacity']['c_ref']:.3g}", worst))
    return (
        Table(("server", "C_ref, requests/s", "least good ratio of a window, by part of C_ref"), rows)
        if rows
        else None
    )


def disturbance(backends: Mapping[str, Any]) -> Table | None:
    """Return what long prompts do to the short requests beside them."""
    rows = []
    for name, found in backends.items():
        summaries = {cell["name"]: cell["summary"] for cell in found["cells"]}
        if ALONE not in summaries or BESIDE not in summaries:
            continue
        mixed = summaries[BESIDE]
        pair = [summaries[ALONE]["ttft_ms"], mixed["by_label"].get("short", mixed)["ttft_ms"]]
        if None not in pair:
            values = [figures[percentile] for percentile in ("p50", "p99") for figures in pair]
            rows.append((name, *(f"{value:,.1f}" for value in values), f"{values[3] / values[2]:.2f}"))
    header = ("server", "p50 alone, ms", "beside", "p99 alone, ms", "beside", "p99 ratio")
    return Table(header, rows) if rows else None


def side_by_side(backends: Mapping[str, Any], figure: str, percentile: str | None = None) -> Table | None:
    """Return one figure of every load of every server, and what ours is over the best of the others."""
    loads = dict.fromkeys(cell["name"] for found in backends.values() for cell in found["cells"])
    best = min if percentile else max
    rows = []
    for load in loads:
        values = {
            name: value
            for name, found in backends.items()
            for cell in found["cells"]
            if cell["name"] == load and (value := _value(cell["summary"], figure, percentile)) is not None
        }
        others = [value for name, value in values.items() if name != OURS]
        ratio = f"{values[OURS] / best(others):.2f}" if OURS in values and others and best(others) else ""
        rows.append((load, *(f"{values[name]:,.1f}" if name in values else "" for name in backends), ratio))
    return Table(("load", *backends, "ratio"), rows) if rows else None


def _value(summary: Mapping[str, Any], figure: str, percentile: str | None) -> float | None:
    """Return a figure of a run in which every request was answered; a run with failures has none."""
    value = summary[figure] if summary["failed"] == 0 else None
    if value is None or percentile is None:
        return value
    return float(value[percentile])
