"""The page in a real browser: everything that can go wrong, and what it says then."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser

REFUSED = ("Failed to load resource",)  # the browser itself notes every response that is no success


def test_a_wrong_key(stand_in: StandIn, open_page: Any) -> None:
    stand_in.key = "right"
    before = stand_in.generated
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    expect(page.page.locator("#notice")).to_contain_text("needs an API key")
    page.send("Hi")
    expect(page.page.locator(".failure")).to_contain_text("This server needs an API key")
    assert stand_in.generated == before, "the engine's numbers are asked for without a key"
    page.page.click(".failure >> text=Enter a key")
    page.page.get_by_role("textbox", name="API key").fill("wrong")
    page.page.keyboard.press("Enter")
    expect(page.page.get_by_role("dialog")).to_contain_text("The server does not know this key")
    page.page.get_by_role("textbox", name="API key").fill("right")
    page.page.keyboard.press("Enter")
    expect(page.page.locator(".assistant .body")).to_have_text("Hello there.")
    expect(page.page.locator(".notice.warning")).to_have_count(0)
    assert stand_in.headers[-1]["authorization"] == "Bearer right"
    assert "right" not in page.page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    page.page.reload()
    expect(page.page.locator("#notice")).to_contain_text("needs an API key")


def test_a_key_that_was_good_and_is_changed_to_a_wrong_one(stand_in: StandIn, open_page: Any) -> None:
    stand_in.key = "right"
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.page.click("#notice >> text=Enter a key")
    field = page.page.get_by_role("textbox", name="API key")
    dialog = page.page.get_by_role("dialog")
    field.fill("right")
    page.page.keyboard.press("Enter")
    expect(page.page.locator(".welcome-title")).to_have_text("Talk to stand-in-1B")
    page.page.keyboard.press("Alt+s")
    page.page.click("text=API key…")
    field.fill("wrong")
    page.page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not know this key")
    page.page.click("dialog >> text=Cancel")
    expect(page.page.locator("#notice")).to_contain_text("needs an API key")


def test_a_key_is_kept_only_if_asked(stand_in: StandIn, open_page: Any) -> None:
    stand_in.key = "right"
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.page.click("#notice >> text=Enter a key")
    page.page.get_by_role("textbox", name="API key").fill("right")
    page.page.get_by_label("Keep it in this browser").check()
    page.page.click("dialog >> text=Use this key")
    expect(page.page.locator(".notice")).to_have_count(0)
    page.page.reload()
    page.send("Hi")
    page.wait_done()
    assert page.answer() == "Hello there."


def test_an_overloaded_server_is_tried_again(stand_in: StandIn, open_page: Any) -> None:
    plans = [Plan(status=429, code="engine_overloaded", headers={"retry-after": "1"})] * 2 + [Plan()]
    asked: list[float] = []

    def plan(body: dict[str, Any]) -> Plan:
        asked.append(time.monotonic())
        return plans[len(asked) - 1]

    stand_in.plan = plan
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.send("Hi")
    expect(page.page.locator(".failure")).to_contain_text("The server is busy")
    expect(page.page.locator(".countdown")).to_contain_text("Trying again in")
    expect(page.page.locator(".assistant .body")).to_have_text("Hello there.")
    assert asked[1] - asked[0] >= 1
    assert asked[2] - asked[1] >= 2  # each time it is left alone for longer
    expect(page.page.locator(".failure")).to_have_count(0)


def test_the_page_sees_at_once_that_the_server_goes(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    expect(page.page.locator(".welcome-title")).to_have_text("Talk to stand-in-1B")
    stand_in.ready = (503, "server_shutting_down")
    stand_in.plan = lambda body: Plan(status=503, code="server_shutting_down")
    page.send("Hi")
    expect(page.page.locator("#notice")).to_contain_text("The server is shutting down")
    stand_in.ready = (200, None)
    expect(page.page.locator("#notice")).to_contain_text("The server is back")


def test_waiting_for_another_try_can_be_ended(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(status=429, code="engine_overloaded", headers={"retry-after": "30"})
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.send("Hi")
    page.page.click("text=Do not try again")
    expect(page.page.locator(".failure >> text=Try again")).to_be_visible()
    expect(page.page.locator(".send")).to_have_attribute("aria-label", "Send")
    stand_in.plan = lambda body: Plan()
    page.page.click(".failure >> text=Try again")
    expect(page.page.locator(".assistant .body")).to_have_text("Hello there.")


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (503, "server_shutting_down", "The server is shutting down"),
        (503, "engine_dead", "The model stopped working"),
        (400, "context_length_exceeded", "longer than the model can read"),
        (400, "invalid_value", "The server did not accept the request"),
        (413, "body_too_large", "The message is too large"),
        (403, "origin_not_allowed", "The server refused this page"),
        (504, "request_timeout", "The answer took too long"),
        (500, "internal_error", "Something failed on the server"),
    ],
)
def test_refusals_have_words(stand_in: StandIn, open_page: Any, status: int, code: str, words: str) -> None:
    stand_in.plan = lambda body: Plan(status=status, code=code, message="the reason")
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.send("Hi")
    expect(page.page.locator(".failure")).to_contain_text(words)
    page.page.reload()
    expect(page.page.locator(".failure")).to_contain_text(words)


def test_a_connection_that_breaks_keeps_what_came_and_goes_on(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["One", " two", " three"], cut_after=2, rate=5)
    page = open_page(stand_in.url)
    page.allowed = ("ERR_INCOMPLETE_CHUNKED_ENCODING",)
    page.send("Count")
    expect(page.page.locator(".failure")).to_contain_text("The connection broke in the middle")
    assert page.answer() == "One two"
    page.page.reload()
    expect(page.page.locator(".assistant .body")).to_have_text("One two")
    stand_in.plan = lambda body: Plan(pieces=[" three"])
    page.page.click(".failure >> text=Continue")
    expect(page.page.locator(".assistant .body")).to_have_text("One two three")
    expect(page.page.locator(".failure")).to_have_count(0)


def test_an_error_inside_a_stream(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["One", " two"], fail_after=1)
    page = open_page(stand_in.url)
    page.send("Count")
    expect(page.page.locator(".failure")).to_contain_text("Something failed on the server")
    assert page.answer() == "One"


def test_a_page_that_is_closed_in_the_middle(stand_in: StandIn, open_page: Any) -> None:
    gate = threading.Event()
    stand_in.plan = lambda body: Plan(pieces=["One", " two"], gate=gate)
    page = open_page(stand_in.url)
    page.send("Count")
    expect(page.page.locator(".assistant .body")).to_have_text("One")
    expect(page.page.locator("#conversations li")).to_have_count(1)  # then it is kept
    page.page.reload()
    gate.set()
    expect(page.page.locator(".failure")).to_contain_text("The connection broke in the middle")


def test_offline_and_back(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.allowed = ("ERR_INTERNET_DISCONNECTED",)
    page.page.context.set_offline(True)
    expect(page.page.locator("#notice")).to_contain_text("The server cannot be reached")
    page.send("Hi")
    expect(page.page.locator(".failure")).to_contain_text("The server cannot be reached")
    page.page.context.set_offline(False)
    expect(page.page.locator("#notice")).to_contain_text("The server is back")
    page.page.click(".failure >> text=Try again")
    expect(page.page.locator(".assistant .body")).to_have_text("Hello there.")


def test_a_model_that_is_still_loading(stand_in: StandIn, open_page: Any) -> None:
    stand_in.ready = (503, "model_loading")
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    expect(page.page.locator("#notice")).to_contain_text("The model is still being loaded")
    stand_in.ready = (200, None)
    expect(page.page.locator(".welcome-title")).to_have_text("Talk to stand-in-1B")


def test_a_server_that_says_nothing(stand_in: StandIn, open_page: Any) -> None:
    """As one that was suspended, or that a network in between has lost."""
    page = open_page(stand_in.url)
    page.allowed = ("ERR_ABORTED",)
    page.page.add_init_script(
        "const wait = AbortSignal.timeout; AbortSignal.timeout = () => wait.call(AbortSignal, 300)"
    )
    page.page.route("**/ready", lambda route: None)
    page.page.goto(stand_in.url + "?")
    expect(page.page.locator("#notice")).to_contain_text("The server cannot be reached")
    page.page.unroute("**/ready")
    page.page.click("text=Check again")
    expect(page.page.locator("#notice")).to_contain_text("The server is back")


def test_a_slow_answer_can_be_waited_for(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(delay=1.5)
    page = open_page(stand_in.url)
    page.send("Hi")
    expect(page.page.locator(".meta")).to_contain_text("Waiting for the first token")
    page.wait_done()
    assert page.answer() == "Hello there."
