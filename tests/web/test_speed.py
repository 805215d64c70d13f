"""How the page keeps up: a long answer, the first paint, and what it weighs in memory."""

from __future__ import annotations

import os
import random
import statistics
from typing import Any

import pytest

from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser

TOKENS = 20_000
RATE = float(os.environ.get("TINYLLM_WEB_RATE", "2000"))
"""Tokens a second. 200 is what a person may see and takes 100 seconds; ten times that is the harder case."""
LONGEST_FRAME = 50
"""In milliseconds, at up to 200 tokens a second. Other work on the machine also holds up frames, so at ten
times that only most of them must be as short."""

WORDS = [
    "the",
    "page",
    "of",
    "small",
    "servers",
    "shows",
    "what",
    "models",
    "write",
    "and",
    "nothing",
    "waits",
]

FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
MEASURE = """
() => {
  window.tasks = [];
  window.gaps = [];
  const note = (list) => tasks.push(...list.getEntries().map((one) => one.duration));
  const observer = new PerformanceObserver(note);
  observer.observe({ type: 'longtask' });
  let last = performance.now();
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    window.measuring !== false && requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}
"""


def long_answer(tokens: int, chance: random.Random) -> list[str]:
    """A document of all kinds of blocks, as a list of tokens."""
    pieces: list[str] = []

    def words(count: int) -> list[str]:
        return [f" {chance.choice(WORDS)}" for _ in range(count)]

    while len(pieces) < tokens:
        kind = chance.choice(["text", "text", "list", "code", "table", "heading", "quote", "long code"])
        if kind == "text":
            pieces += [*words(40), " **", *words(3), "**", " `", "code", "`", *words(30), ".\n\n"]
        elif kind == "list":
            pieces += [part for _ in range(8) for part in ("-", *words(9), "\n")] + ["\n"]
        elif kind == "table":
            pieces += ["| a", " | b |\n", "|---", "|---|\n"]
            pieces += [part for _ in range(8) for part in ("|", *words(3), " |", *words(3), " |\n")] + ["\n"]
        elif kind == "heading":
            pieces += ["##", *words(4), "\n\n"]
        elif kind == "quote":
            pieces += [">", *words(20), "\n\n"]
        else:
            lines = 300 if kind == "long code" else 12
            pieces += ["```", "python", "\n"]
            pieces += [
                part
                for _ in range(lines)
                for part in ("    ", "x", " =", " f(", '"a"', ",", " 12", ")", "  #", *words(2), "\n")
            ]
            pieces += ["```", "\n\n"]
    return pieces[:tokens]


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def test_a_long_answer_stays_smooth(
    stand_in: StandIn, open_page: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces = long_answer(TOKENS, random.Random(1))
    stand_in.plan = lambda body: Plan(pieces=pieces, rate=RATE)
    page = open_page(stand_in.url)
    page.page.set_default_timeout(300_000)
    page.page.evaluate(MEASURE)
    page.send("Write a lot")
    page.wait_done()
    tasks, gaps = page.page.evaluate("() => (window.measuring = false, [tasks, gaps])")
    inspector = page.page.context.new_cdp_session(page.page)
    inspector.send("HeapProfiler.collectGarbage")
    heap = inspector.send("Runtime.getHeapUsage")["usedSize"] / 2**20
    elements = page.page.locator(".assistant .body *").count()
    with capsys.disabled():
        print(
            f"\n{TOKENS} tokens at {RATE:g}/s: {len(gaps)} frames, median {statistics.median(gaps):.1f} ms, "
            f"p99 {percentile(gaps, 0.99):.1f} ms, longest {max(gaps):.0f} ms; "
            f"tasks over 50 ms: {len(tasks)}, "
            f"longest {max(tasks, default=0):.0f} ms; heap {heap:.0f} MiB, {elements} elements"
        )
    assert page.page.locator(".assistant .meta").inner_text().startswith("20,000 tokens")
    assert percentile(gaps, 0.95) < LONGEST_FRAME
    assert RATE > 200 or max(gaps) < LONGEST_FRAME
    assert sum(tasks) < 0.1 * sum(gaps)
    assert heap < 100
    assert page.page.locator("#scroller").evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight") < 5


def test_the_page_shows_at_once(
    stand_in: StandIn, open_page: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    paints = []
    for _ in range(5):
        page = open_page(stand_in.url)
        paints.append(page.page.evaluate(FIRST_PAINT))
    with capsys.disabled():
        print(
            f"\nfirst contentful paint: median {statistics.median(paints):.0f} ms, "
            f"all {sorted(map(round, paints))}"
        )
    assert min(paints) < 300  # the page's own time; the others also show what else the machine does
    assert statistics.median(paints) < (1000 if os.environ.get("CI") else 600)
