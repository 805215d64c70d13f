"""`Run`: one run of any result that has runs against servers; `write_report`: what there is to see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tinyllm.bench.capacity.study import cell_of
from tinyllm.bench.capacity.table import RUN_HEADER, capacity_words, gathered, run_row
from tinyllm.bench.compare import kind_of
from tinyllm.bench.plots.figures import Level, goodput, inter_token_tail, latency, timeline
from tinyllm.bench.plots.page import Section, Table, page
from tinyllm.bench.plots.picture import Picture
from tinyllm.bench.serve.records import RunResult, TimelinePoint
from tinyllm.bench.table import markdown_table
from tinyllm.errors import ConfigError

__all__ = ["Run", "runs_of", "sections", "words_of", "write_report"]

LEAST_POINTS: Final = 3
"""Of a timeline; one of less than a few seconds shows nothing."""
MOST: Final = 8
"""Timelines on a page, and tails in a picture; more would be a heap."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    series: str
    """Which server; runs of one series are joined by a line."""
    load: str
    """Which load, in a word or two."""
    rate: float | None
    """Requests offered a second; None if they were not offered by the clock."""
    cell: Mapping[str, Any]
    """As `cell_of` makes it."""

    @property
    def name(self) -> str:
        """Series and load."""
        return f"{self.series}, {self.load}"


def runs_of(report: Mapping[str, Any], name: str) -> list[Run]:
    """Return the runs of a result called ``name``. Raises `ConfigError` if it has none."""
    try:
        match kind_of(report):
            case "serve":
                return [_of_serve(report, name)]
            case "capacity":
                return [_of_level(level, name) for level in report["levels"]]
            case "serving":
                return list(_of_study(report))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{name} is damaged: {error}") from None
    raise ConfigError(f"{name} has no runs against a server: it is a result of {kind_of(report)}")


def words_of(report: Mapping[str, Any], name: str) -> list[str]:
    """Return what a result says in sentences: of each server, which load it sustains."""
    match kind_of(report):
        case "capacity":
            return [f"{name}: {line}" for line in capacity_words(report)]
        case "serving":
            return [
                line
                for backend, found in report["backends"].items()
                if found.get("capacity")
                for line in words_of(found["capacity"], backend)
            ]
    return []


def sections(title: str, runs: Sequence[Run], words: Sequence[str] = ()) -> Iterator[Section]:
    """Yield what a page shows of runs: their figures, then pictures."""
    rows = [(run.series, run.load, *run_row(run.cell)) for run in runs]
    warnings = gathered(f"{run.series}: {warning}" for run in runs for warning in run.cell["warnings"])
    yield Section(title, [*words, *warnings], Table(("server", "load", *RUN_HEADER), rows))
    pictures = list(_pictures(runs))
    if pictures:
        yield Section("Pictures", pictures=pictures)


def write_report(directory: Path, title: str, parts: Sequence[Section]) -> list[Path]:
    """Write the page, its tables as Markdown, and every picture; return the page's path and the tables'."""
    directory.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for picture in part.pictures:
            picture.write(directory)
    paths = [directory / "report.html", directory / "report.md"]
    paths[0].write_text(page(title, parts), encoding="utf-8")
    paths[1].write_text("\n".join(_markdown(title, parts)) + "\n", encoding="utf-8")
    return paths


def _markdown(title: str, parts: Sequence[Section]) -> Iterator[str]:
    yield f"# {title}"
    for part in parts:
        yield from ("", f"## {part.heading}", "")
        for line in part.words:
            yield from (line, "")
        if part.table is not None:
            yield from markdown_table(part.table.header, part.table.rows)
            yield ""
        for picture in part.pictures:
            yield f"![{picture.title}]({picture.name}.svg)"


def _pictures(runs: Sequence[Run]) -> Iterator[Picture]:
    levels = [Level(run.series, run.rate, run.cell["summary"]) for run in runs if run.rate is not None]
    if len({(level.series, level.rate) for level in levels}) > 1:
        yield latency(levels, "ttft")
        yield latency(levels, "tpot")
        if any(level.summary["limits_ms"] for level in levels):
            yield goodput(levels)
    shown = _busiest(runs)[:MOST]
    tails = {run.name: run.cell["itl_tail"] for run in shown if run.cell["itl_tail"]}
    if tails:
        yield inter_token_tail(tails)
    for number, run in enumerate(shown):
        points = [TimelinePoint(**point) for point in run.cell["timeline"]]
        if len(points) >= LEAST_POINTS:
            yield timeline(points, name=f"timeline-{number}", of=run.name)


def _busiest(runs: Sequence[Run]) -> list[Run]:
    """Return the run of each series at the highest rate, or all of a series that has none."""
    found: list[Run] = []
    for series in dict.fromkeys(run.series for run in runs):
        mine = [run for run in runs if run.series == series]
        with_rate = [run for run in mine if run.rate is not None]
        found += [max(with_rate, key=lambda run: run.rate or 0)] if with_rate else mine
    return found


def _of_serve(report: Mapping[str, Any], name: str) -> Run:
    result = RunResult.from_json(report)
    arrivals = result.metadata["arrivals"]
    rate = arrivals["request_rate"]
    if rate == "inf":
        rate = None if arrivals["kind"] == "closed" else result.summary["request_throughput"]
    load = f"closed loop of {arrivals['max_concurrency']}" if rate is None else f"{rate:.3g}/s"
    return Run(name, load, rate, cell_of(result))


def _of_level(level: Mapping[str, Any], series: str) -> Run:
    load = f"{level['fraction']:g} of C_ref, window {level['window']}"
    return Run(series, load, float(level["rate"]), level)


def _of_study(report: Mapping[str, Any]) -> Iterator[Run]:
    for backend, found in report["backends"].items():
        for level in (found.get("capacity") or {}).get("levels", ()):
            yield _of_level(level, backend)
        for cell in found["cells"]:
            yield Run(backend, cell["name"], None, cell)
