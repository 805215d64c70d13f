"""`draw`: a matplotlib figure as an SVG that follows the reader's light or dark mode, and as a PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tinyllm.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "DARK", "LIGHT", "Picture", "draw"]

COLOURS: Final = ("#2a8fd8", "#e08a00", "#12a07a", "#c76fa8", "#d55e00", "#8b949e")
"""Of series: told apart without red and green, on white and on black."""
LIGHT: Final = {"ink": "#1f2328", "grid": "#d0d7de", "paper": "#ffffff"}
DARK: Final = {"ink": "#e6edf3", "grid": "#3d444d", "paper": "#0d1117"}
WIDTH: Final = 5.2
"""Inches, at 10-point text: readable at the width of a phone."""
_STYLE: Final[Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": LIGHT["paper"],
    "axes.facecolor": LIGHT["paper"],
    "savefig.facecolor": LIGHT["paper"],
    "grid.color": LIGHT["grid"],
    "grid.linewidth": 0.6,
    "text.color": LIGHT["ink"],
    "axes.labelcolor": LIGHT["ink"],
    "axes.edgecolor": LIGHT["ink"],
    "xtick.color": LIGHT["ink"],
    "ytick.color": LIGHT["ink"],
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "tinyllm",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """One figure, drawn."""

    name: str
    """Of its files, without a suffix."""
    title: str
    svg: str
    """Stands alone as a file, or inside a page."""
    png: bytes

    def write(self, directory: Path) -> None:
        """Write both files."""
        (directory / f"{self.name}.svg").write_text(self.svg, encoding="utf-8")
        (directory / f"{self.name}.png").write_bytes(self.png)


def draw(name: str, title: str, paint: Callable[[Figure], None], *, height: float = 3.2) -> Picture:
    """Return what ``paint`` draws on an empty figure. Raises `ConfigError` without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'tinyllm[bench]'") from None
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure)
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Picture(name, title, _follow_mode(svg.getvalue(), title), png.getvalue())


def _follow_mode(svg: str, title: str) -> str:
    """Give the colours of the surroundings names, with a value for each mode; drop what is no drawing."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for role, colour in LIGHT.items():
        svg = svg.replace(colour, f"var(--{role})")
    svg = svg.replace("'DejaVu Sans'", "system-ui")
    values = [";".join(f"--{role}:{colour}" for role, colour in mode.items()) for mode in (LIGHT, DARK)]
    style = f"<style>svg{{{values[0]}}}@media(prefers-color-scheme:dark){{svg{{{values[1]}}}}}</style>"
    head = f'<svg role="img" aria-label="{escape(title)}"'
    svg = svg.replace("<svg", head, 1)
    end = svg.index(">") + 1
    return svg[:end] + style + svg[end:]
