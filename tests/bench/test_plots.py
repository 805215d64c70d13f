"""Pictures and the page: whole, alone, and for light and dark."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tinyllm.bench.plots.figures import Level, goodput, inter_token_tail, latency, timeline
from tinyllm.bench.plots.page import Section, Table, page
from tinyllm.bench.plots.picture import LIGHT, Picture
from tinyllm.bench.serve.records import TimelinePoint
from tinyllm.bench.stats import tail
from tinyllm.errors import ConfigError

SVG = "{http://www.w3.org/2000/svg}"
LEVELS = [
    Level(
        series,
        rate,
        {"ttft_ms": {"p50": 9.0 * rate, "p99": 80.0 * rate}, "tpot_ms": None, "good_ratio": 1 / rate},
    )
    for series in ("a & b", "c")
    for rate in (1.0, 2.0, 2.0)
]
POINTS = [
    TimelinePoint(t=float(t), in_flight=t % 5, output_tokens=9 * t, running=2, waiting=t) for t in range(9)
]
WITH_CACHE = [*POINTS, TimelinePoint(t=9.0, in_flight=0, output_tokens=81, kv_usage=0.5)]
DRAW: dict[str, Callable[[], Picture]] = {
    "latency": lambda: latency(LEVELS, "ttft"),
    "latency without a figure": lambda: latency(LEVELS, "tpot"),
    "goodput": lambda: goodput(LEVELS),
    "goodput of nothing": lambda: goodput([]),
    "timeline": lambda: timeline(POINTS),
    "timeline with cache": lambda: timeline(WITH_CACHE, name="other", of="a <server>"),
    "timeline of nothing": lambda: timeline([]),
    "gaps": lambda: inter_token_tail({"a": tail([1.0, 2.0, 300.0]), "empty": tail([]), "zero": tail([0.0])}),
}


@pytest.mark.parametrize("name", DRAW)
def test_a_picture_is_whole_and_alone(name: str) -> None:
    picture = DRAW[name]()
    root = ElementTree.fromstring(picture.svg)
    assert root.tag == f"{SVG}svg"
    assert root.get("aria-label") == picture.title
    assert root.get("viewBox")
    assert root.get("width") is None, "it takes the width it is given"
    assert not re.search(r"(?:src|href)=\"(?!#)|url\((?!#)|@import|<script", picture.svg)
    assert picture.png.startswith(b"\x89PNG")


@pytest.mark.parametrize("name", DRAW)
def test_a_picture_has_the_colours_of_both_modes(name: str) -> None:
    svg = DRAW[name]().svg
    body = svg.replace(re.findall(r"<style>.*?</style>", svg)[0], "")
    assert not any(colour in body for colour in LIGHT.values())
    assert "prefers-color-scheme:dark" in svg
    assert "var(--ink)" in body


def test_a_picture_is_the_same_each_time() -> None:
    assert latency(LEVELS, "ttft") == latency(LEVELS, "ttft")


def test_series_are_named_in_the_picture() -> None:
    texts = "".join(ElementTree.fromstring(latency(LEVELS, "ttft").svg).itertext())
    assert all(words in texts for words in ("a & b p50", "c p99", "Time to first token"))


def test_both_files_are_written(tmp_path: Path) -> None:
    timeline(POINTS, name="one").write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"one.svg", "one.png"}


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"tinyllm\[bench\]"):
        timeline(POINTS)


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_needs_nothing_else() -> None:
    table = Table(("server", "good"), [("<b>a</b>", "1")])
    html = page("A & B", [Section("One", ["words <i>"], table, [latency(LEVELS, "ttft"), timeline(POINTS)])])
    reader = Reader()
    reader.feed(html)
    assert not {"script", "link", "img", "iframe", "b", "i"} & set(reader.tags)
    assert all(link.startswith("#") for link in reader.links)
    assert reader.tags.count("svg") == 2
    assert 'name="viewport"' in html
    assert "color-scheme:light dark" in html
    assert "A &amp; B" in html
