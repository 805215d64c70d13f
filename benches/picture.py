"""A bar chart as SVG: groups of bars side by side, without a plotting library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

COLOURS = ("#1f6feb", "#8b949e", "#c9d1d9", "#d29922", "#a371f7", "#3fb950")
WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 64, 44


def bars(title: str, values: Mapping[str, Mapping[str, float]]) -> str:
    """Draw ``values[group][series]``, each bar with its number above it."""
    series = list(dict.fromkeys(name for group in values.values() for name in group))
    top = max((value for group in values.values() for value in group.values()), default=1.0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, title, size=16),
        *_legend(series),
        *_grid(top),
        *_groups(values, series, top),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _legend(series: list[str]) -> Iterator[str]:
    x = float(LEFT)
    for name, colour in zip(series, COLOURS, strict=False):
        yield f'<rect x="{x:.0f}" y="36" width="12" height="12" fill="{colour}"/>'
        yield _text(x + 16, 46, name)
        x += 32 + 7 * len(name)


def _grid(top: float) -> Iterator[str]:
    for step in range(5):
        value = top * step / 4
        y = _y(value, top)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d0d7de"/>'
        yield _text(LEFT - 6, y + 4, f"{value:,.0f}", anchor="end")


def _groups(values: Mapping[str, Mapping[str, float]], series: list[str], top: float) -> Iterator[str]:
    group_width = (WIDTH - LEFT - RIGHT) / max(1, len(values))
    bar_width = group_width * 0.86 / max(1, len(series))
    for number, (group, members) in enumerate(values.items()):
        left = LEFT + group_width * (number + 0.07)
        for place, (name, colour) in enumerate(zip(series, COLOURS, strict=False)):
            if name not in members:
                continue
            x, y = left + place * bar_width, _y(members[name], top)
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar_width - 1:.1f}" '
                f'height="{HEIGHT - BOTTOM - y:.1f}" fill="{colour}">'
                f"<title>{escape(f'{group}, {name}: {members[name]:,.1f}')}</title></rect>"
            )
            yield _text(x + bar_width / 2, y - 3, f"{members[name]:,.0f}", anchor="middle", size=9)
        yield _text(left + group_width * 0.43, HEIGHT - BOTTOM + 18, group, anchor="middle")


def _y(value: float, top: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
