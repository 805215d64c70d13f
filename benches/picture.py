"""A bar chart: groups of bars side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tinyllm.bench.plots.picture import COLOURS, Picture, draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(name: str, title: str, values: Mapping[str, Mapping[str, float]]) -> Picture:
    """Draw ``values[group][series]``, each bar with its number at its end."""
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    height = 0.86 / max(1, len(series))

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        for place, (name, colour) in enumerate(zip(series, COLOURS, strict=False)):
            mine = {at: group[name] for at, group in enumerate(values.values()) if name in group}
            ys = [at + place * height for at in mine]
            drawn = axes.barh(ys, list(mine.values()), height=height * 0.95, color=colour, label=name)
            axes.bar_label(drawn, fmt="{:,.0f}", padding=2, fontsize=7)
        middles = [at + 0.43 - height / 2 for at in range(len(values))]
        axes.set(yticks=middles, yticklabels=list(values))
        figure.suptitle(title)  # over the labels too, or a long one is cut
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower center", ncols=3)

    return draw(name, title, paint, height=1.2 + 0.17 * len(values) * max(1, len(series)))
