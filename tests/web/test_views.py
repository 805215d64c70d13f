"""The page in a real browser: as it is for people who see little, zoom in, or read from right to left."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser

LOOKS = """
(element) => {
  const style = getComputedStyle(element);
  return ['backgroundColor', 'borderTopWidth', 'borderTopColor'].map((name) => style[name]).join(' ');
}
"""


@pytest.mark.parametrize("dark", [False, True])
def test_forced_colours_keep_what_colours_say(stand_in: StandIn, open_page: Any, dark: bool) -> None:
    """What is chosen, pressed, full or sure can be told apart, though the page's colours are not shown."""
    page = open_page(stand_in.url, dark=dark, forced_colors="active")
    view = page.page
    view.click("text=Probabilities")
    pressed = view.locator(".chip").evaluate(LOOKS)
    page.send("one")
    page.wait_done()
    view.click("#new-chat")
    page.send("two")
    page.wait_done()
    rows = view.locator("#conversations li")
    assert rows.nth(0).evaluate(LOOKS) != rows.nth(1).evaluate(LOOKS)
    view.click("#top-right [aria-label=Engine]")
    tabs = {name: view.get_by_role("tab", name=name).evaluate(LOOKS) for name in ("Engine", "Prompt")}
    assert tabs["Engine"] != tabs["Prompt"]
    view.locator("[aria-label='Tokens and probabilities']").click()
    legend = [each.evaluate(LOOKS) for each in view.locator(".token-legend .token").all()]
    assert len(set(legend)) == 5
    for bar in view.locator(".bar").all():
        track = bar.locator("xpath=..")
        assert bar.evaluate(LOOKS) != track.evaluate(LOOKS)
    view.click("text=Probabilities")
    assert view.locator(".chip").evaluate(LOOKS) != pressed


def test_four_times_as_large(stand_in: StandIn, open_page: Any) -> None:
    """1280 by 1024 at 400 %: what is written, the button to send it and some of the answer are in sight."""
    page = open_page(stand_in.url, width=320, height=256)
    view = page.page
    page.send("Hi")
    page.wait_done()
    view.fill("#draft", "line\n" * 30)
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name in ("#draft", ".send", "#top"):
        box = view.locator(name).bounding_box()
        assert box["y"] >= 0, name
        assert box["y"] + box["height"] <= 256, name
    assert view.evaluate("document.getElementById('scroller').clientHeight") >= 24
    view.click("#top-right [aria-label=Settings]")
    view.get_by_label("Seed").fill("5")
    view.click("[aria-label='Close the tools']")
    view.click("[aria-label='Show conversations']")
    view.get_by_text("Import, export, clear").click()
    view.get_by_text("Delete all conversations").click()
    view.get_by_role("button", name="Delete all", exact=True).click()
    expect(view.locator("#conversations li")).to_have_count(0)


def test_a_screen_that_is_turned(stand_in: StandIn, open_page: Any) -> None:
    """The list was over the page on the narrow side, and is beside it on the wide one."""
    page = open_page(stand_in.url, width=800, height=1100)
    page.page.click("[aria-label='Show conversations']")
    page.page.set_viewport_size({"width": 1100, "height": 800})
    page.page.click("#draft")
    page.send("Hi")
    page.wait_done()
    page.page.set_viewport_size({"width": 800, "height": 1100})
    page.page.locator("[aria-label='Answer again']").click()
    page.wait_done()
    assert len(stand_in.bodies) == 2


BACKWARDS = "\u202eabc"
"""Text that turns what follows it around, unless it is kept to itself."""


def test_text_that_turns_around_turns_nothing_else(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=[f"{BACKWARDS}\n\n`{BACKWARDS}` after\n\n- {BACKWARDS}\n- b"])
    page = open_page(stand_in.url)
    view = page.page
    view.click("text=Probabilities")
    page.send(BACKWARDS)
    page.wait_done()
    place = """
    ([where, text]) => {
      const walker = document.createTreeWalker(document.querySelector(where), NodeFilter.SHOW_TEXT);
      for (let node; (node = walker.nextNode()); ) {
        const range = document.createRange();
        const at = node.data.indexOf(text);
        if (at < 0) continue;
        const lefts = [at, at + text.length - 1].map((index) => {
          range.setStart(node, index);
          range.setEnd(node, index + 1);
          return range.getBoundingClientRect().left;
        });
        return lefts[0] < lefts[1];
      }
    }
    """
    assert view.evaluate(place, [".assistant .body", "after"])
    view.locator("[aria-label='Tokens and probabilities']").click()
    assert view.evaluate(place, [".token-detail p", "log probability"])
    view.click("#conversations [aria-label^=More]")
    view.click("text=Delete…")
    expect(view.locator("dialog p")).to_have_text(re.compile("will be gone"))
    assert view.evaluate(place, ["dialog p", "will be gone"])
