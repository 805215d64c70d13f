"""The page in a real browser: what a person does with it."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser


def echo(body: dict[str, Any]) -> Plan:
    """Answer with the last message and how many there are."""
    return Plan(
        pieces=["You said ", f"**{body['messages'][-1]['content']}**", f" ({len(body['messages'])})."]
    )


NOTE_ARRIVALS = """
() => {
  window.arrived = [];
  const { read } = ReadableStreamDefaultReader.prototype;
  ReadableStreamDefaultReader.prototype.read = async function () {
    const part = await read.call(this);
    if (new TextDecoder().decode(part.value).includes('"content"')) arrived.push(performance.now() / 1000);
    return part;
  };
}
"""


def test_a_message_is_answered_and_measured(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["a "] * 40, rate=100)
    page = open_page(stand_in.url)
    page.page.evaluate(NOTE_ARRIVALS)
    page.send("Hello")
    page.wait_done()
    assert page.answer() == ("a " * 40).strip()
    meta = page.page.inner_text(".assistant .meta")
    assert re.fullmatch(r"40 tokens · [\d.,]+ tokens/s · first after [\d.]+ m?s", meta)
    rate = float(re.findall(r"([\d.,]+) tokens/s", meta)[0].replace(",", ""))
    arrived = page.page.evaluate("arrived")
    assert rate == pytest.approx(39 / (arrived[-1] - arrived[0]), rel=0.1)
    assert page.page.inner_text(".context") == "60 of 8,192 tokens of context"
    [body] = stand_in.bodies
    assert body["messages"] == [{"role": "user", "content": "Hello"}]
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert page.page.title() == "Hello · tinyllm"


def test_text_shows_as_it_comes_and_stop_ends_it(stand_in: StandIn, open_page: Any) -> None:
    gate = threading.Event()
    stand_in.plan = lambda body: Plan(pieces=["First", " second"], gate=gate)
    page = open_page(stand_in.url)
    page.send("Hello")
    expect(page.page.locator(".assistant .body")).to_have_text("First")
    page.page.keyboard.press("Escape")
    expect(page.page.locator(".note-row")).to_contain_text("Stopped.")
    gate.set()
    page.wait_until(lambda: stand_in.ended)
    assert page.answer() == "First"
    page.wait_until(lambda: stand_in.cancelled)
    assert stand_in.cancelled == [stand_in.headers[0]["x-request-id"]]
    expect(page.page.locator("#draft")).to_be_focused()


def test_continue_after_stop_goes_on_in_the_same_message(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["One", " two"], finish="length")
    page = open_page(stand_in.url)
    page.send("Count")
    page.wait_done()
    stand_in.plan = lambda body: Plan(pieces=[" three"])
    page.page.click("text=Continue")
    page.wait_done()
    expect(page.page.locator(".assistant .body")).to_have_text("One two three")
    body = stand_in.bodies[1]
    assert body["messages"][-1] == {"role": "assistant", "content": "One two"}
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)


def test_edits_and_new_answers_are_branches(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = echo
    page = open_page(stand_in.url)
    page.send("one")
    page.wait_done()
    page.send("two")
    page.wait_done()
    assert page.answer() == "You said two (3)."
    page.page.locator(".user").first.hover()
    page.page.locator("[aria-label='Edit and send again']").first.click()
    page.page.fill(".edit", "uno")
    page.page.press(".edit", "Enter")
    page.wait_done()
    expect(page.page.locator(".message")).to_have_count(2)
    assert page.answer() == "You said uno (1)."
    page.page.mouse.move(0, 0)
    branches = page.page.locator(".user .branches")
    expect(branches).to_have_text("2/2")
    expect(branches).to_have_css("opacity", "1")  # seen without pointing at the message
    page.page.click("[aria-label='Previous version']")
    expect(page.page.locator(".message")).to_have_count(4)
    assert page.answer() == "You said two (3)."
    page.page.locator("[aria-label='Answer again']").last.click()
    page.wait_done()
    expect(page.page.locator(".branches").last).to_have_text("2/2")
    page.page.reload()
    expect(page.page.locator(".message")).to_have_count(4)
    expect(page.page.locator(".branches").last).to_have_text("2/2")


def test_conversations_are_kept_found_renamed_deleted(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = echo
    page = open_page(stand_in.url)
    for text in ("apples", "pears"):
        page.send(text)
        page.wait_done()
        page.page.click("#new-chat")
    rows = page.page.locator("#conversations li")
    expect(rows).to_have_count(2)
    page.page.fill("#search", "SAID apples".lower().split()[1])
    expect(rows).to_have_count(1)
    rows.first.locator(".row").click()
    expect(page.page.locator(".user .body")).to_have_text("apples")
    rows.first.locator("[aria-label^=More]").click()
    page.page.click("text=Rename…")
    page.page.fill("dialog input", "Fruit")
    page.page.press("dialog input", "Enter")
    expect(page.page.locator("#title")).to_have_text("Fruit")
    page.page.fill("#search", "")
    expect(rows).to_have_count(2)
    page.page.locator("li.current [aria-label^=More]").click()
    page.page.click("text=Delete…")
    page.page.get_by_role("button", name="Delete", exact=True).click()
    expect(rows).to_have_count(1)
    page.page.reload()
    expect(rows).to_have_count(1)


def test_export_and_import_give_the_same_conversation(
    stand_in: StandIn, open_page: Any, tmp_path: Path
) -> None:
    stand_in.plan = echo
    page = open_page(stand_in.url)
    page.send("first")
    page.wait_done()
    page.page.locator("[aria-label='Answer again']").click()
    page.wait_done()
    more = page.page.locator("#conversations [aria-label^=More]")
    for kind in ("JSON", "Markdown"):
        more.click()
        with page.page.expect_download() as download:
            page.page.click(f"text=Export as {kind}")
        download.value.save_as(tmp_path / kind)
    assert (
        tmp_path / "Markdown"
    ).read_text() == "# first\n\n## You\n\nfirst\n\n## Assistant\n\nYou said **first** (1).\n"
    exported = json.loads((tmp_path / "JSON").read_text())["conversations"][0]
    assert len(exported["messages"]) == 3
    page.page.click("text=Import, export, clear")
    page.page.click("text=Delete all")
    page.page.get_by_role("button", name="Delete all", exact=True).click()
    expect(page.page.locator("#conversations li")).to_have_count(0)
    page.page.click("text=Import, export, clear")
    with page.page.expect_file_chooser() as chooser:
        page.page.click("text=Import from a file")
    chooser.value.set_files(
        {"name": "x.json", "mimeType": "application/json", "buffer": (tmp_path / "JSON").read_bytes()}
    )
    page.page.locator("#conversations .row").click()
    expect(page.page.locator(".branches").last).to_have_text("2/2")


@pytest.mark.parametrize(
    "text", ["no json", "{}", '{"format":"tinyllm.conversations","conversations":[{"messages":{"a":{}}}]}']
)
def test_a_file_that_is_no_export_is_refused(stand_in: StandIn, open_page: Any, text: str) -> None:
    page = open_page(stand_in.url)
    page.page.click("text=Import, export, clear")
    with page.page.expect_file_chooser() as chooser:
        page.page.click("text=Import from a file")
    chooser.value.set_files({"name": "x.json", "mimeType": "application/json", "buffer": text.encode()})
    expect(page.page.locator("#notice")).to_contain_text(re.compile("not JSON|not exported|damaged"))
    expect(page.page.locator("#conversations li")).to_have_count(0)


def test_settings_go_into_the_request(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.page.click("#top-right [aria-label=Settings]")
    assert page.page.get_attribute("#field-temperature", "placeholder") == "0.2"
    page.page.get_by_label("System prompt").fill("Be brief.")
    page.page.fill("#field-top_k", "12")
    page.page.fill("#field-seed", "x")
    expect(page.page.locator("#problem-seed")).to_have_text("This is not a number.")
    page.page.fill("#field-seed", "7")
    page.page.get_by_label("Stop texts").fill("END\n\\n\\n")
    page.send("Hi")
    page.wait_done()
    body = stand_in.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["top_k"], body["seed"], body["stop"]) == (12, 7, ["END", "\n\n"])
    assert "temperature" not in body
    page.page.get_by_label("Preset").select_option("Precise")
    page.page.get_by_label("Show the answer while it is made").uncheck()
    page.send("Again")
    page.wait_done()
    assert page.answer() == "Hello there."
    body = stand_in.bodies[1]
    assert (body["temperature"], body["stream"], "top_k" in body, "stream_options" in body) == (
        0,
        False,
        False,
        False,
    )


def test_what_cannot_be_a_setting_stays_to_be_put_right(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.page.keyboard.press("Alt+s")
    temperature, problem = page.page.locator("#field-temperature"), page.page.locator("#problem-temperature")
    temperature.fill("0,5")  # as many people write it
    expect(problem).to_have_text("")
    temperature.fill("0.5x")
    page.page.fill("#field-top_k", "12")
    expect(temperature).to_have_value("0.5x")
    expect(temperature).to_have_attribute("aria-invalid", "true")
    expect(problem).to_have_text("This is not a number.")
    page.send("Hi")
    page.wait_done()
    assert (stand_in.bodies[0]["temperature"], stand_in.bodies[0]["top_k"]) == (0.5, 12)
    page.page.get_by_label("Preset").select_option("Precise")
    expect(temperature).to_have_value("0")
    expect(temperature).to_have_attribute("aria-invalid", "false")
    expect(problem).to_have_text("")


def test_presets_can_be_saved_and_deleted(stand_in: StandIn, open_page: Any) -> None:
    """Also one that says what another says, or has the name of one that was there."""
    page = open_page(stand_in.url)
    page.page.keyboard.press("Alt+s")
    preset = page.page.get_by_label("Preset")
    for name, top_k in (("Mine", ""), ("Precise", "5")):
        page.page.fill("#field-top_k", top_k)
        page.page.click("text=Save as…")
        page.page.fill("dialog input", name)
        page.page.press("dialog input", "Enter")
        expect(preset).to_have_value(name)
    page.page.reload()
    page.page.keyboard.press("Alt+s")
    expect(preset).to_have_value("Precise")
    expect(page.page.locator("#field-top_k")).to_have_value("5")
    page.page.click("text=Delete preset")
    expect(preset).to_have_value("")
    preset.select_option("Precise")
    expect(page.page.locator("#field-temperature")).to_have_value("0")
    preset.select_option("Mine")
    page.page.click("text=Delete preset")
    expect(preset).to_have_value("Server defaults")


def test_reasoning_is_in_a_fold(stand_in: StandIn, open_page: Any) -> None:
    """It can be opened while the model thinks, and grows on."""
    gate = threading.Event()
    stand_in.plan = lambda body: Plan(reasoning=["I *think*", " hard."], pieces=["Done."], gate=gate)
    page = open_page(stand_in.url)
    page.send("Think")
    summary, thoughts = page.page.locator(".reasoning summary"), page.page.locator(".reasoning-body")
    expect(summary).to_have_text("Thinking…")
    expect(thoughts).not_to_be_visible()
    summary.click()
    expect(thoughts).to_have_text("I think")
    gate.set()
    expect(thoughts).to_have_text("I think hard.")
    page.wait_done()
    expect(summary).to_have_text(re.compile("Thought for"))
    assert page.answer() == "Done."


def test_code_and_messages_can_be_copied(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["Text\n\n```py\nif x:\n", "\ty = 1\n```\n"])
    page = open_page(stand_in.url, permissions=["clipboard-read", "clipboard-write"])
    page.send("Code")
    page.wait_done()
    page.page.click(".copy-code")
    expect(page.page.locator(".copy-code")).to_have_text("Copied")
    assert page.page.evaluate("navigator.clipboard.readText()") == "if x:\n\ty = 1"
    page.page.locator(".assistant [aria-label='Copy message']").click()
    page.wait_until(lambda: page.page.evaluate("navigator.clipboard.readText()").startswith("Text"))
    assert page.page.evaluate("navigator.clipboard.readText()") == "Text\n\n```py\nif x:\n\ty = 1\n```\n"


def test_tokens_show_their_probabilities(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.page.click("text=Probabilities")
    page.send("Hi")
    page.wait_done()
    assert (stand_in.bodies[0]["logprobs"], stand_in.bodies[0]["top_logprobs"]) == (True, 5)
    page.page.click("[aria-label='Tokens and probabilities']")
    expect(page.page.locator(".tokens .token")).to_have_count(3)
    page.page.locator(".tokens .token").nth(1).hover()
    expect(page.page.locator(".token-detail p")).to_contain_text("␣there")
    expect(page.page.locator(".alternatives li")).to_have_count(3)
    page.page.focus(".tokens")
    page.page.keyboard.press("End")
    expect(page.page.locator(".token-detail p")).to_contain_text("token 3 of 3")
    page.page.click("[aria-label='Tokens and probabilities']")
    assert page.answer() == "Hello there."


def test_an_answer_that_goes_on_while_its_tokens_are_shown(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=["One", " two"], finish="length")
    page = open_page(stand_in.url)
    page.page.click("text=Probabilities")
    page.send("Count")
    page.wait_done()
    page.page.click("[aria-label='Tokens and probabilities']")
    expect(page.page.locator(".tokens .token")).to_have_count(2)
    page.page.click("text=Continue")
    page.wait_done()
    assert page.answer() == "One twoOne two"
    page.page.click("[aria-label='Tokens and probabilities']")
    expect(page.page.locator(".tokens .token")).to_have_count(4)


def test_the_prompt_is_shown_with_its_special_tokens(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.send("Hi")
    page.wait_done()
    page.page.click("[aria-label='What the model saw']")
    expect(page.page.locator(".prompt")).to_have_text(
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    expect(page.page.locator(".prompt mark")).to_have_count(3)


ASKED = """
() => {
  const all = performance.getEntriesByType('resource');
  return all.filter(({ name }) => name.endsWith('/metrics')).map(({ startTime }) => startTime / 1000);
}
"""
"""When the page asked for the engine's numbers, in seconds."""


def test_the_engine_is_watched_closely_while_it_is_looked_at(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.page.click("#top-right [aria-label=Engine]")
    facts = page.page.locator(".facts").first
    expect(facts).to_contain_text("Running2")
    expect(facts).to_contain_text("31%")
    expect(page.page.locator(".chart-now")).to_have_text(re.compile(r"^[1-9]\d*$"))
    expect(page.page.locator(".chart-line")).to_have_attribute("d", re.compile("H"))
    page.page.click("[aria-label='Close the tools']")
    closed = page.page.evaluate("performance.now() / 1000")
    page.page.wait_for_timeout(2700)
    assert len([at for at in page.page.evaluate(ASKED) if at > closed]) <= 1  # what was due within a second


def test_the_chart_has_what_was_before_it_was_looked_at(stand_in: StandIn, open_page: Any) -> None:
    """Its steps begin and end when the engine was asked, seldom at first and then often."""
    page = open_page(stand_in.url)
    line = page.page.locator(".chart-line")
    expect(line).to_have_attribute("d", re.compile("H"), timeout=20_000)
    expect(line).not_to_be_visible()
    page.page.click("#top-right [aria-label=Engine]")
    expect(line).to_have_attribute("d", re.compile("(H.*){3}"))
    looked: list[tuple[list[float], list[float]]] = []

    def look() -> bool:
        drawn = [float(number) for number in re.findall(r"[MH]([\d.-]+)", line.get_attribute("d"))]
        looked.append((drawn, page.page.evaluate(ASKED)))
        return len(drawn) == len(looked[-1][1])

    page.wait_until(look)
    drawn, asked = looked[-1]
    assert drawn == pytest.approx([300 - 5 * (asked[-1] - at) for at in asked], abs=1.5)
    assert drawn[1] - drawn[0] > 20


def test_the_engine_is_asked_for_one_thing_at_a_time(stand_in: StandIn, open_page: Any) -> None:
    """A server that is slow to tell its numbers does not find many waiting to hear them."""
    page = open_page(stand_in.url)
    page.page.click("#top-right [aria-label=Engine]")
    expect(page.page.locator(".facts").first).to_contain_text("Running2")
    asked: list[Any] = []
    page.page.route("**/metrics", lambda route: asked.append(route))
    page.page.wait_for_timeout(3500)
    assert len(asked) == 1
    asked[0].continue_()
    page.page.unroute("**/metrics")
    before = stand_in.generated
    page.wait_until(lambda: stand_in.generated > before)
    assert stand_in.generated > before


def test_scrolling_up_is_respected(stand_in: StandIn, open_page: Any) -> None:
    stand_in.plan = lambda body: Plan(pieces=[f"Line {number}\n\n" for number in range(300)], rate=100)
    page = open_page(stand_in.url)
    page.send("Long")
    scroller = page.page.locator("#scroller")
    end = "e => e.scrollHeight - e.scrollTop - e.clientHeight"
    jump = page.page.locator("[aria-label='To the newest message']")
    page.page.get_by_text("Line 80", exact=True).wait_for()
    assert scroller.evaluate(end) < 5
    scroller.hover()
    page.page.mouse.wheel(0, -600)
    expect(jump).to_be_visible()
    top = scroller.evaluate("e => e.scrollTop")
    page.page.get_by_text("Line 250", exact=True).wait_for(state="attached")
    assert scroller.evaluate("e => e.scrollTop") <= top
    assert scroller.evaluate(end) > 40
    jump.click()
    expect(jump).to_be_hidden()
    assert scroller.evaluate(end) < 5
    page.wait_done()
    assert scroller.evaluate(end) < 5


def test_an_answer_goes_on_while_another_conversation_is_open(stand_in: StandIn, open_page: Any) -> None:
    gate = threading.Event()
    stand_in.plan = lambda body: Plan(pieces=["Slow", " answer"], gate=gate)
    page = open_page(stand_in.url)
    page.send("one")
    expect(page.page.locator(".assistant .body")).to_have_text("Slow")
    page.page.click("#new-chat")
    expect(page.page.locator(".message")).to_have_count(0)
    page.page.locator("#conversations .row").click()
    expect(page.page.locator(".assistant .body")).to_have_text("Slow")
    gate.set()
    expect(page.page.locator(".assistant .body")).to_have_text("Slow answer")
    page.wait_done()  # then it is kept
    page.page.reload()
    expect(page.page.locator(".assistant .body")).to_have_text("Slow answer")
