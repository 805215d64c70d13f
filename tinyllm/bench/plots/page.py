"""`page`: tables and pictures as one HTML file that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

from tinyllm.bench.plots.picture import DARK, LIGHT, Picture

__all__ = ["Section", "Table", "page"]

_STYLE: Final = """
body{margin:0 auto;max-width:72rem;padding:1rem;font:16px/1.5 system-ui,sans-serif;
color:var(--ink);background:var(--paper)}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem}
.pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}
figure{margin:0}figure svg{width:100%;height:auto;display:block}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--grid);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
""".strip().replace("\n", "")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and what is under it, in this order."""

    heading: str
    words: Sequence[str] = ()
    table: Table | None = None
    pictures: Sequence[Picture] = field(default_factory=tuple)


def page(title: str, sections: Sequence[Section]) -> str:
    """Return the whole page."""
    values = [";".join(f"--{role}:{colour}" for role, colour in mode.items()) for mode in (LIGHT, DARK)]
    mode = f":root{{color-scheme:light dark;{values[0]}}}"
    mode += f"@media(prefers-color-scheme:dark){{:root{{{values[1]}}}}}"
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<title>{escape(title)}</title><style>{mode}{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        *(line for section in sections for line in _section(section)),
        "</body></html>",
    ]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.heading)}</h2>"
    yield from (f"<p>{escape(line)}</p>" for line in section.words)
    if section.table is not None:
        yield '<div class="table" tabindex="0" role="region" aria-label="table"><table><thead><tr>'
        yield "".join(f'<th scope="col">{escape(cell)}</th>' for cell in section.table.header)
        yield "</tr></thead><tbody>"
        for row in section.table.rows:
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        yield "</tbody></table></div>"
    if section.pictures:
        yield '<div class="pictures">'
        yield from (f"<figure>{picture.svg}</figure>" for picture in section.pictures)
        yield "</div>"
    yield "</section>"
