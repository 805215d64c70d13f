"""The comparison as Markdown, by itself or inside ``docs/benchmarks.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyllm.bench.table import environment_line, markdown_table, report_lines

MARKED = re.compile(r"(<!-- results (\w+) (\S+) (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)

Place = tuple[str, str, str]
"""Kind of table, model, dtype."""


def markdown(run: dict[str, Any]) -> str:
    """Return everything."""
    lines = [f"# {run['model']}, {run['blocks']} blocks", "", environment_line(run["environment"]), ""]
    for dtype, results in run["dtypes"].items():
        lines += [f"## {dtype}", "", *comparison(run, dtype), ""]
        if "tinyllm" in results:
            lines += ["### tinyllm by itself", "", *alone(run, dtype), ""]
    return "\n".join(lines)


def fill_docs(page: Path, run: dict[str, Any]) -> None:
    """Put the tables where the page has marks for them, such as ``results comparison MODEL DTYPE``."""
    tables: dict[Place, list[str]] = {}
    for dtype, results in run["dtypes"].items():
        head = [environment_line(run["environment"]), ""]
        tables["comparison", run["model"], dtype] = [*head, *comparison(run, dtype)]
        if "tinyllm" in results:
            tables["alone", run["model"], dtype] = [*head, *alone(run, dtype)]
    fill_marks(page, tables)


def fill_marks(page: Path, tables: Mapping[Place, Sequence[str]]) -> None:
    """Put lines between the marks of a page: ``results KIND MODEL DTYPE`` and ``end``."""

    def fill(match: re.Match[str]) -> str:
        mark, kind, model, dtype, end = match.groups()
        lines = tables.get((kind, model, dtype))
        return match[0] if lines is None else mark + "\n".join(lines) + "\n" + end

    page.write_text(MARKED.sub(fill, page.read_text()))


def alone(run: dict[str, Any], dtype: str) -> Iterator[str]:
    """Yield tinyllm's own report."""
    yield from report_lines(run["dtypes"][dtype]["tinyllm"], "latency")


def comparison(run: dict[str, Any], dtype: str) -> Iterator[str]:
    """Yield the tables of all engines in one dtype."""
    results = run["dtypes"][dtype]
    names = list(results["engines"])
    for kind in ("decode", "prefill"):
        header = (f"{kind}, tok/s", *names, "x best peer", "95 %", "of limit")
        yield from markdown_table(header, [_row(each, kind, names) for each in results["workloads"]])
        yield ""
    peers = [name for name in names if name != "tinyllm"]
    if peers:
        header = ("tinyllm's decode, times that of", *peers)
        yield from markdown_table(header, [_ratios(each, peers) for each in results["workloads"]])
        yield ""
    header = ("", *names)
    colds, memory = results["cold_start_seconds"], results["peak_memory_bytes"]
    yield from markdown_table(
        header,
        [
            (
                "cold start to first token, s",
                *(f"{colds[name]:.2f}" if name in colds else "" for name in names),
            ),
            ("peak memory, MB", *(f"{memory[name] / 1e6:,.0f}" for name in names)),
        ],
    )
    for name, reason in results["failures"].items():
        yield f"{name} failed: {reason}"
    disturbed = sum(each["disturbed"] for each in results["workloads"])
    if disturbed:
        yield f"{disturbed} measurements were disturbed, each time they were tried."


def _row(result: dict[str, Any], kind: str, names: list[str]) -> tuple[str, ...]:
    rates, ratios = result[f"{kind}_tok_s"], result[f"{kind}_ratios"]
    cells = [f"{rates[name]:,.1f}" if name in rates else "" for name in names]
    of_limit = f"{rates['tinyllm'] / result['limit_tok_s'][kind]:.0%}" if "tinyllm" in rates else ""
    peers = [name for name in ratios if name in rates]
    if not peers:
        return (result["workload"], *cells, "", "", of_limit)
    best = ratios[max(peers, key=lambda name: float(rates[name]))]
    interval = f"{best['low']:.2f}-{best['high']:.2f}"
    return (result["workload"], *cells, f"{best['median']:.2f}", interval, of_limit)


def _ratios(result: dict[str, Any], peers: list[str]) -> tuple[str, ...]:
    ratios = result["decode_ratios"]
    return (
        result["workload"],
        *(f"{ratios[name]['median']:.2f}" if name in ratios else "" for name in peers),
    )
