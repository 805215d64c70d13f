"""The page for everybody: by keyboard, with a screen reader, right to left, narrow, in either colours."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser

RICH = """# Title

Some *text* with `code`, a [link](https://a.example) and

- a
- b

| a | b |
|---|---|
| 1 | 2 |

```python
def f(x):  # comment
    return "text" + str(1.5)
```

> A quote
"""
SIZES = [(360, 740), (1280, 800), (1920, 1080)]


def violations(page: Any, axe: str) -> list[str]:
    """What axe-core finds, with all its rules."""
    page.page.evaluate(axe)
    found = page.page.evaluate(
        "async () => (await axe.run(document, { resultTypes: ['violations'] })).violations"
    )
    return [f"{one['id']}: {node['html'][:200]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES[:2])
def test_axe_finds_nothing(
    stand_in: StandIn, open_page: Any, axe_source: str, width: int, height: int, dark: bool
) -> None:
    stand_in.plan = lambda body: Plan(pieces=[RICH], reasoning=["A thought."])
    page = open_page(stand_in.url, width=width, height=height, dark=dark)
    page.allowed = ("Failed to load resource",)
    found = {"empty": violations(page, axe_source)}
    page.page.click("text=Probabilities")
    page.send("Hi")
    page.wait_done()
    page.page.locator("[aria-label='Answer again']").click()
    page.wait_done()
    page.page.click(".reasoning summary")
    found["answer"] = violations(page, axe_source)
    page.page.click("[aria-label='Tokens and probabilities']")
    found["tokens"] = violations(page, axe_source)
    for name in ("Prompt", "Engine", "Settings"):
        page.page.keyboard.press("Alt+s") if not page.page.locator("#panel").is_visible() else None
        page.page.get_by_role("tab", name=name).click()
        page.page.wait_for_timeout(300)
        found[name] = violations(page, axe_source)
    page.page.click("[aria-label='Close the tools']")
    if width < 860:
        page.page.click("[aria-label='Show conversations']")
        page.page.wait_for_timeout(300)
        found["drawer"] = violations(page, axe_source)
    page.page.locator("#conversations [aria-label^=More]").first.click()
    found["menu"] = violations(page, axe_source)
    page.page.click("text=Rename…")
    found["dialog"] = violations(page, axe_source)
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("Escape")
    stand_in.plan = lambda body: Plan(status=503, code="server_shutting_down")
    page.send("Again")
    page.page.locator(".failure").wait_for()
    found["failure"] = violations(page, axe_source)
    assert {where: problems for where, problems in found.items() if problems} == {}


def test_everything_by_keyboard(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    keys = page.page.keyboard
    focused = page.page.locator(":focus")
    expect(page.page.locator("#draft")).to_be_focused()
    keys.type("one")
    keys.press("Shift+Enter")
    keys.type("two")
    keys.press("Enter")
    page.wait_done()
    assert stand_in.bodies[0]["messages"][0]["content"] == "one\ntwo"
    keys.press("Shift+Tab")
    expect(focused).to_have_attribute("aria-label", "What the model saw")
    keys.press("Enter")
    expect(page.page.get_by_role("tab", name="Prompt")).to_be_focused()
    keys.press("ArrowLeft")
    expect(page.page.get_by_role("tab", name="Settings")).to_be_focused()
    keys.press("Escape")
    expect(focused).to_have_attribute("aria-label", "What the model saw")
    keys.press("Alt+k")
    expect(page.page.locator("#search")).to_be_focused()
    keys.press("Tab")
    keys.press("Tab")
    expect(focused).to_have_attribute("aria-label", "More for one")
    keys.press("Enter")
    keys.press("ArrowUp")
    expect(focused).to_have_text("Delete…")
    keys.press("Enter")
    expect(focused).to_have_text("Cancel")
    keys.press("Tab")
    keys.press("Enter")
    expect(page.page.locator(".message")).to_have_count(0)
    expect(page.page.locator("#draft")).to_be_focused()


def test_the_keyboard_on_a_narrow_screen(stand_in: StandIn, open_page: Any) -> None:
    """What is behind the list of conversations, or behind the tools, is not to be reached."""
    page = open_page(stand_in.url, width=360, height=740)
    keys = page.page.keyboard
    focused = page.page.locator(":focus")
    page.send("one")
    page.wait_done()
    for name, opener, shown in (
        ("#sidebar", "Show conversations", "New chat"),
        ("#panel", "Engine", "Engine"),
    ):
        page.page.locator(f"#top [aria-label='{opener}']").focus()
        keys.press("Enter")
        expect(focused).to_have_text(shown)
        for key in ["Tab"] * 25 + ["Shift+Tab"] * 25:
            keys.press(key)
            assert page.page.locator(f"{name}, .skip").evaluate_all(
                "all => all.some((one) => one.contains(document.activeElement))"
                " || document.activeElement === document.body"
            )
        page.page.locator(name).locator("button").first.focus()
        keys.press("Escape")
        expect(focused).to_have_attribute("aria-label", opener)
    keys.press("Alt+k")
    expect(page.page.locator("#search")).to_be_focused()
    page.page.mouse.click(350, 400)
    expect(page.page.locator("#sidebar")).not_to_be_visible()
    expect(focused).to_have_attribute("aria-label", "Engine")


def test_answers_are_read_out(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["A sentence. ", "And `another`."])
    page = open_page(stand_in.url)
    page.send("Hi")
    expect(page.page.locator("#announcer")).to_contain_text("another")
    expect(page.page.locator("article").last).to_have_attribute("aria-busy", "false")


def test_text_from_right_to_left(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["שלום עולם\n\n- مرحبا\n\n```\nx = 1\n```\n\nHello"])
    page = open_page(stand_in.url)
    page.send("שלום")
    page.wait_done()
    direction = "e => getComputedStyle(e).direction"
    body = page.page.locator(".assistant .body")
    assert body.locator("p").first.evaluate(direction) == "rtl"
    assert body.locator("li").evaluate(direction) == "rtl"
    assert body.locator("pre").evaluate(direction) == "ltr"
    assert body.locator("p").last.evaluate(direction) == "ltr"
    assert page.page.locator(".user p").evaluate(direction) == "rtl"


def test_marks_beside_text_from_right_to_left_are_at_its_side(stand_in: StandIn, open_page: Any) -> None:
    """The numbers of a list, the line of a quote, and the first column of a table."""
    text = "1. ראשון\n2. שני\n\n> ציטוט\n\n| שם | מספר |\n|---|---|\n| תפוח | 3 |\n\n1. one\n\n> quote"
    stand_in.plan = lambda body: Plan(pieces=[text])
    page = open_page(stand_in.url, width=360, height=740)
    page.send("Hi")
    page.wait_done()
    direction = "es => es.map((e) => getComputedStyle(e).direction)"
    body = page.page.locator(".assistant .body")
    assert body.locator("ol").evaluate_all(direction) == ["rtl", "ltr"]
    assert body.locator("blockquote").evaluate_all(direction) == ["rtl", "ltr"]
    first, second = (body.locator("th").nth(at).bounding_box()["x"] for at in (0, 1))
    assert first > second
    gap = body.locator("ol").first.evaluate(
        "e => e.getBoundingClientRect().right - e.firstChild.getBoundingClientRect().right"
    )
    assert gap >= 20  # room for the numbers


@pytest.mark.parametrize(("width", "height"), [*SIZES, (320, 500)])
def test_nothing_sticks_out(stand_in: StandIn, open_page: Any, width: int, height: int) -> None:
    long = "x" * 300
    stand_in.plan = lambda body: Plan(
        pieces=[f"{long}\n\n```\n{long}\n```\n\n| {long} | b |\n|--|--|\n| 1 | 2 |\n"]
    )
    page = open_page(stand_in.url, width=width, height=height)
    page.send(long)
    page.wait_done()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.page.locator("#scroller").evaluate("e => e.scrollWidth <= e.clientWidth")
    assert page.page.locator(".send").is_visible()


@pytest.mark.parametrize("width", [320, 360])
def test_no_label_of_a_button_is_broken(stand_in: StandIn, open_page: Any, width: int) -> None:
    page = open_page(stand_in.url, width=width, height=740)
    page.allowed = ("Failed to load resource",)
    plans = [
        Plan(finish="length"),
        Plan(status=429, code="engine_overloaded", headers={"retry-after": "30"}),
        Plan(status=401, code="invalid_api_key"),
        Plan(status=400, code="context_length_exceeded", message="too long " * 20),
    ]
    for plan in plans:
        stand_in.plan = lambda body, plan=plan: plan  # type: ignore[misc]
        page.send("Hi")
        page.page.locator(".note-row, .failure").last.wait_for()
        page.page.keyboard.press("Escape")
    page.page.keyboard.press("Alt+s")
    broken = page.page.locator(".button").evaluate_all(
        "all => all.filter((one) => one.offsetHeight > 48).map((one) => one.textContent)"
    )
    assert broken == []


def test_a_touch_of_a_phone(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url, width=360, height=740, has_touch=True, is_mobile=True)
    assert page.page.get_attribute("#draft", "enterkeyhint") is None  # the key begins a line
    page.page.fill("#draft", "Hi")
    page.page.press("#draft", "Enter")
    page.page.keyboard.type("you")
    page.page.tap(".send")
    page.wait_done()
    assert stand_in.bodies[0]["messages"][0]["content"] == "Hi\nyou"
    page.page.tap("[aria-label='Show conversations']")
    page.page.tap("#new-chat")
    expect(page.page.locator(".message")).to_have_count(0)
    expect(page.page.locator("#sidebar")).not_to_be_visible()
