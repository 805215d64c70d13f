"""The page in a real browser: the focus is never lost, and keys and clicks do only what they should."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser

REFUSED = ("Failed to load resource",)
FOCUS = "document.activeElement.ariaLabel ?? document.activeElement.textContent"


def test_the_focus_stays_in_the_list_of_conversations(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    for text in ("one", "two", "three"):
        page.send(text)
        page.wait_done()
        page.page.click("#new-chat")
    view = page.page
    press = view.keyboard.press
    rows = view.locator("#conversations li")
    rows.nth(1).locator(".row").focus()
    press("Enter")
    expect(view.locator("#title")).to_have_text("two")
    expect(rows.nth(1).locator(".row")).to_be_focused()
    press("Tab")
    press("Enter")
    expect(view.get_by_role("menuitem", name="Rename…")).to_be_focused()
    press("Escape")
    expect(rows.nth(1).locator("[aria-label^=More]")).to_be_focused()
    expect(view.locator("[role=menu]")).to_have_count(0)
    press("Enter")
    press("Enter")
    expect(view.locator("dialog input")).to_be_focused()
    view.keyboard.type("new")
    press("Enter")
    expect(rows.nth(1)).to_contain_text("new")
    expect(rows.nth(1).locator("[aria-label^=More]")).to_be_focused()
    rows.first.locator("[aria-label^=More]").focus()
    press("Enter")
    press("End")
    press("Enter")
    expect(view.get_by_role("button", name="Cancel")).to_be_focused()
    press("Tab")
    press("Enter")
    expect(rows).to_have_count(2)
    expect(rows.first.locator("[aria-label^=More]")).to_be_focused()


def test_the_focus_stays_at_hand_after_the_buttons_of_a_message(stand_in: StandIn, open_page: Any) -> None:
    """They go when an answer begins: the button that stops it comes next."""
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    stand_in.plan = lambda body: Plan(finish="length")

    def press(name: str) -> None:
        page.page.get_by_role("button", name=name).last.focus()
        page.page.keyboard.press("Enter")
        page.page.wait_for_timeout(100)
        page.wait_done()
        expect(page.page.locator(".send")).to_be_focused()

    page.send("Hi")
    page.wait_done()
    press("Answer again")
    press("Continue")
    stand_in.plan = lambda body: Plan(status=500)
    page.send("Hi")
    page.wait_done()
    press("Try again")
    stand_in.plan = lambda body: Plan(status=429, headers={"retry-after": "30"})
    page.page.get_by_role("button", name="Try again").focus()
    page.page.keyboard.press("Enter")
    page.page.locator(".countdown").wait_for()
    press("Do not try again")


def test_the_focus_comes_back_from_the_tools(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.send("Hi")
    page.wait_done()
    page.page.locator("[aria-label='What the model saw']").focus()
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Escape")
    assert page.page.evaluate(FOCUS) == "What the model saw"
    page.page.keyboard.press("Enter")
    page.page.locator("[aria-label='Answer again']").click()
    page.wait_done()
    page.page.get_by_role("tab", name="Prompt").focus()
    page.page.keyboard.press("Escape")
    expect(page.page.locator(".send")).to_be_focused()


@pytest.mark.parametrize("key", [{"keyCode": 229}, {"isComposing": True}])
def test_keys_of_a_composition_do_nothing_else(
    stand_in: StandIn, open_page: Any, key: dict[str, Any]
) -> None:
    """Enter takes a proposed word; Esc drops it. Safari marks the former only by its number."""
    gate = threading.Event()
    stand_in.plan = lambda body: Plan(pieces=["One", " two"], gate=gate)
    page = open_page(stand_in.url)
    press = """([where, name, key]) => {
      const event = new KeyboardEvent('keydown', { key: name, bubbles: true, cancelable: true, ...key });
      document.querySelector(where).dispatchEvent(event);
    }"""
    page.page.fill("#draft", "half")
    page.page.evaluate(press, ["#draft", "Enter", key])
    assert page.page.input_value("#draft") == "half"
    page.send("Hi")
    expect(page.page.locator(".assistant .body")).to_have_text("One")
    if "isComposing" in key:
        page.page.evaluate(press, ["#draft", "Escape", key])
    gate.set()
    page.wait_done()
    assert page.answer() == "One two"
    page.page.locator("[aria-label='Edit and send again']").click()
    for name in ("Enter", "Escape") if "isComposing" in key else ("Enter",):
        page.page.evaluate(press, [".edit", name, key])
    expect(page.page.locator(".edit")).to_be_focused()
    page.page.click("#conversations [aria-label^=More]")
    page.page.click("text=Rename…")
    page.page.evaluate(press, ["dialog input", "Enter", key])
    expect(page.page.locator("dialog")).to_be_visible()
    assert len(stand_in.bodies) == 1


def test_enter_begins_a_line_on_a_phone(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url, width=360, has_touch=True, is_mobile=True)
    page.page.fill("#draft", "one")
    page.page.press("#draft", "Enter")
    page.page.keyboard.type("two")
    page.page.tap(".send")
    page.wait_done()
    assert stand_in.bodies[0]["messages"][0]["content"] == "one\ntwo"
    page.page.locator("[aria-label='Edit and send again']").tap()
    page.page.fill(".edit", "one")
    page.page.press(".edit", "Enter")
    page.page.keyboard.type("more")
    assert page.page.input_value(".edit") == "one\nmore"
    assert len(stand_in.bodies) == 1


def test_two_clicks_are_one(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(delay=0.3)
    page = open_page(stand_in.url)
    page.page.locator(".suggestion").first.dblclick()
    page.wait_done()
    page.page.fill("#draft", "Hi")
    page.page.locator(".send").dblclick()
    page.wait_done()
    page.page.locator("[aria-label='Answer again']").last.dblclick()
    page.wait_done()
    assert len(stand_in.bodies) == 3
    assert stand_in.cancelled == []
    expect(page.page.locator(".message")).to_have_count(4)


def test_copying_twice_leaves_the_button_as_it_was(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url, permissions=["clipboard-read", "clipboard-write"])
    page.send("Hi")
    page.wait_done()
    copy = page.page.locator(".assistant [aria-label='Copy message']")
    before = copy.inner_html()
    copy.click()
    page.page.wait_for_timeout(300)
    copy.click()
    page.page.wait_for_timeout(1700)
    assert copy.inner_html() == before


def test_a_menu_closes_by_its_button(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    for count in (1, 0, 1, 0):
        page.page.click("text=Import, export, clear")
        expect(page.page.locator("[role=menu]")).to_have_count(count)


def test_a_dialog_keeps_the_keys_of_the_page_out(stand_in: StandIn, open_page: Any) -> None:
    """And closes by Esc or a click beside it, but not by one on its edge."""
    stand_in.key = "right"
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.send("Hi")
    page.page.click(".failure >> text=Enter a key")
    dialog = page.page.locator("dialog")
    box = dialog.bounding_box()
    page.page.mouse.click(box["x"] + 6, box["y"] + 6)
    for keys in ("Alt+n", "Alt+s", "Alt+k"):
        page.page.keyboard.press(keys)
    expect(dialog).to_be_visible()
    expect(page.page.locator("#panel")).to_be_hidden()
    page.page.mouse.click(5, 5)
    expect(dialog).to_have_count(0)
    expect(page.page.get_by_role("button", name="Enter a key").last).to_be_focused()
    page.page.keyboard.press("Enter")
    page.page.get_by_role("textbox", name="API key").fill("right")
    page.page.keyboard.press("Enter")
    expect(page.page.locator(".assistant .body")).to_have_text("Hello there.")
    assert [message["content"] for message in stand_in.bodies[-1]["messages"]] == ["Hi"]


@pytest.mark.parametrize("key", ["ключ", "sk-123\u200b", "“quoted”"])
def test_a_key_that_no_request_can_carry_is_a_wrong_key(stand_in: StandIn, open_page: Any, key: str) -> None:
    stand_in.key = "right"
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.page.click("#notice >> text=Enter a key")
    page.page.get_by_role("textbox", name="API key").fill(key)
    page.page.keyboard.press("Enter")
    expect(page.page.locator("dialog")).to_contain_text("does not know this key")
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#notice")).to_contain_text("needs an API key")
