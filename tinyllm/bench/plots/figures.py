"""The figures of load on a server: latency and goodput against load, a run's timeline, tails of gaps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tinyllm.bench.plots.picture import COLOURS, LIGHT, Picture, draw
from tinyllm.bench.serve.records import TimelinePoint
from tinyllm.bench.stats import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Level", "goodput", "inter_token_tail", "latency", "timeline"]

LATENCY_TITLES: Final = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2el": "End-to-end latency",
}


SHORTEST_MS: Final = 0.1
"""Shorter gaps are drawn as so long: chunks that came at once."""


@dataclass(frozen=True, slots=True)
class Level:
    """One run at one load."""

    series: str
    """What was measured: a server."""
    rate: float
    """Requests offered a second."""
    summary: Mapping[str, Any]


def latency(levels: Sequence[Level], metric: str) -> Picture:
    """Draw a latency against load: median and 99th percentile of each series."""
    title = f"{LATENCY_TITLES[metric]} against load"

    def paint(figure: Figure) -> None:
        from matplotlib.ticker import LogLocator

        axes = _axes(figure, title, "requests offered a second", "ms")
        for colour, (series, mine) in zip(_cycle(), _by_series(levels).items(), strict=False):
            for percentile, style in (("p50", "o-"), ("p99", "^--")):
                points = [
                    (level.rate, figures[percentile])
                    for level in mine
                    if (figures := level.summary.get(f"{metric}_ms"))
                ]
                _line(axes, points, style, colour, f"{series} {percentile}")
        if axes.dataLim.y1 > 0:
            axes.set_yscale("log", subs=())
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xlim(left=0)
        _legend(figure)

    return draw(f"latency-{metric}", title, paint)


def goodput(levels: Sequence[Level]) -> Picture:
    """Draw how many of the requests offered a second are good; on the diagonal every request is."""
    title = "Good requests against load"

    def paint(figure: Figure) -> None:
        axes = _axes(figure, title, "requests offered a second", "good ones of these")
        top = max((level.rate for level in levels), default=1.0)
        axes.plot([0, top], [0, top], ":", color=LIGHT["ink"], label="all good")
        for colour, (series, mine) in zip(_cycle(), _by_series(levels).items(), strict=False):
            points = [
                (level.rate, level.rate * ratio)
                for level in mine
                if (ratio := level.summary.get("good_ratio")) is not None
            ]
            _line(axes, points, "o-", colour, series)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        _legend(figure)

    return draw("goodput", title, paint)


def timeline(points: Sequence[TimelinePoint], *, name: str = "timeline", of: str = "") -> Picture:
    """Draw requests in flight, running and waiting, and the use of the KV cache if the server says it."""
    title = f"Requests over time{of and ': ' + of}"
    has_cache = any(point.kv_usage is not None for point in points)

    def paint(figure: Figure) -> None:
        panels = figure.subplots(2 if has_cache else 1, sharex=True, squeeze=False)[:, 0]
        for colour, key, words in zip(
            COLOURS,
            ("in_flight", "running", "waiting"),
            ("in flight (client)", "running (server)", "waiting (server)"),
            strict=False,
        ):
            mine = [(point.t, value) for point in points if (value := getattr(point, key)) is not None]
            if mine:
                panels[0].plot(*zip(*mine, strict=True), drawstyle="steps-post", color=colour, label=words)
        panels[0].set(title=title, ylabel="requests", ylim=(0, None))
        if has_cache:
            used = [(point.t, 100 * point.kv_usage) for point in points if point.kv_usage is not None]
            panels[1].plot(*zip(*used, strict=True), drawstyle="steps-post", color=COLOURS[3])
            panels[1].set(ylabel="KV cache, %", ylim=(0, 100))
        panels[-1].set_xlabel("seconds")
        _legend(figure)

    return draw(name, title, paint, height=4.4 if has_cache else 3.2)


def inter_token_tail(curves: Mapping[str, Curve]) -> Picture:
    """Draw which share of all gaps between tokens is how long."""
    title = "Inter-token latency: share of gaps at least so long"

    def paint(figure: Figure) -> None:
        axes = _axes(figure, title, "ms", "share of gaps")
        for colour, (name, curve) in zip(_cycle(), curves.items(), strict=False):
            shown = [(max(value, SHORTEST_MS), share) for value, share in curve]
            if shown:
                axes.plot(*zip(*shown, strict=True), drawstyle="steps-pre", color=colour, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
        axes.yaxis.set_minor_formatter("")
        _legend(figure)

    return draw("inter-token", title, paint)


def _axes(figure: Figure, title: str, x: str, y: str) -> Axes:
    axes = figure.subplots()
    axes.set(title=title, xlabel=x, ylabel=y)
    return axes


def _line(axes: Axes, points: Sequence[tuple[float, float]], style: str, colour: str, label: str) -> None:
    """Draw each run as a point, and a line through the medians of runs at the same load."""
    if not points:
        return
    at: dict[float, list[float]] = {}
    for x, y in sorted(points):
        at.setdefault(x, []).append(y)
    axes.plot(list(at), [statistics.median(ys) for ys in at.values()], style, color=colour, label=label, ms=4)
    axes.plot(*zip(*points, strict=True), style[0], color=colour, alpha=0.4, ms=3)


def _by_series(levels: Sequence[Level]) -> dict[str, list[Level]]:
    found: dict[str, list[Level]] = {}
    for level in levels:
        found.setdefault(level.series, []).append(level)
    return found


def _cycle() -> Sequence[str]:
    return COLOURS * 4


def _legend(figure: Figure) -> None:
    """Say what is what, below the picture, where it hides nothing."""
    if any(axes.get_legend_handles_labels()[1] for axes in figure.axes):
        figure.legend(loc="outside lower center", ncols=2)
