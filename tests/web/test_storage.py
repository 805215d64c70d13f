"""The page in a real browser: conversations are not lost, whatever becomes of the browser's database."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import Plan, StandIn

pytestmark = pytest.mark.browser

GET = "Object.defineProperty(window, '{}', {{ get() {{ throw new DOMException('no', 'SecurityError') }} }})"
CALL = "{} = () => {{ throw new DOMException('no', 'UnknownError') }}"
FAULTS = {
    "refused": GET.format("indexedDB"),
    "missing": "Object.defineProperty(window, 'indexedDB', { value: null })",
    "silent": "IDBFactory.prototype.open = () => ({})",
    "broken": "IDBFactory.prototype.open = () => {"
    " const request = { error: Error() }; setTimeout(() => request.onerror()); return request }",
    "lost": CALL.format("IDBDatabase.prototype.transaction"),
    "full": CALL.format("IDBObjectStore.prototype.put"),
    "unreadable": CALL.format("IDBObjectStore.prototype.count = IDBObjectStore.prototype.put"),
    "no settings": GET.format("localStorage"),
}
DELETE_DATABASE = """
() => new Promise((resolve) => {
  const request = indexedDB.deleteDatabase('tinyllm');
  request.onsuccess = () => resolve('deleted');
  request.onblocked = () => resolve('blocked');
})
"""
FILL = """
async (count) => {
  const database = await new Promise((resolve) => {
    const request = indexedDB.open('tinyllm', 1);
    request.onsuccess = () => resolve(request.result);
  });
  const transaction = database.transaction(['conversations', 'messages'], 'readwrite');
  const [heads, messages] = ['conversations', 'messages'].map((name) => transaction.objectStore(name));
  heads.put({ id: 'long', title: 'A long one', created: 1, updated: 1, selected: {} });
  for (let at = 0; at < count; at += 1) {
    const role = at % 2 ? 'assistant' : 'user';
    const [id, parent, content] = [`m${at}`, at ? `m${at - 1}` : '', `number ${at}`];
    messages.put({ id, conversation: 'long', parent, role, status: 'done', created: at, content });
  }
  await new Promise((resolve) => (transaction.oncomplete = resolve));
}
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_database_the_page_works(
    stand_in: StandIn, browser: Any, fault: str, tmp_path: Path
) -> None:
    """It says so, and conversations are there until it is closed: to list, find, open, export and delete."""
    context = browser.new_context()
    context.add_init_script(FAULTS[fault])
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(stand_in.url + "#no-such-conversation")
    page.locator(".suggestion").first.wait_for()
    for text in ("apples", "pears"):
        page.fill("#draft", text)
        page.press("#draft", "Enter")
        expect(page.locator(".assistant .body")).to_have_text("Hello there.")
        page.locator(".send[aria-label=Send]").wait_for()
        page.click("#new-chat")
    if fault != "no settings":
        expect(page.locator("#notice")).to_contain_text("keep")
        expect(page.locator("#notice .notice")).to_have_count(1)
    rows = page.locator("#conversations li")
    expect(rows).to_have_count(2)
    page.fill("#search", "apples")
    expect(rows).to_have_count(1)
    rows.locator(".row").click()
    expect(page.locator(".user .body")).to_have_text("apples")
    rows.locator("[aria-label^=More]").click()
    with page.expect_download() as download:
        page.click("text=Export as JSON")
    download.value.save_as(tmp_path / "exported.json")
    [exported] = json.loads((tmp_path / "exported.json").read_text())["conversations"]
    assert len(exported["messages"]) == 2
    page.fill("#search", "")
    page.click("text=Import, export, clear")
    page.click("text=Delete all")
    page.get_by_role("button", name="Delete all", exact=True).click()
    expect(rows).to_have_count(0)
    assert problems == []
    context.close()


def second_window(page: Any, url: str) -> Any:
    other = page.page.context.new_page()
    other.on("pageerror", lambda error: page.problems.append(str(error)))
    other.goto(url)
    other.wait_for_selector("#composer-bar button")
    return other


def delete_all(page: Any) -> None:
    page.click("text=Import, export, clear")
    page.click("text=Delete all")
    page.get_by_role("button", name="Delete all", exact=True).click()
    expect(page.locator("#conversations li")).to_have_count(0)


def test_what_another_window_deleted_is_whole_if_it_goes_on_here(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.send("one")
    page.wait_done()
    delete_all(second_window(page, page.page.url))
    page.send("two")
    page.wait_done()
    page.page.reload()
    expect(page.page.locator(".message")).to_have_count(4)


@pytest.mark.parametrize("action", ["open", "Rename…", "Export as JSON", "Export as Markdown", "Delete…"])
def test_what_another_window_deleted_leaves_the_list(stand_in: StandIn, open_page: Any, action: str) -> None:
    page = open_page(stand_in.url)
    page.send("one")
    page.wait_done()
    page.page.click("#new-chat")
    expect(page.page.locator("#conversations li")).to_have_count(1)
    delete_all(second_window(page, stand_in.url))
    if action == "open":
        page.page.click("#conversations .row")
    else:
        page.page.click("#conversations [aria-label^=More]")
        page.page.click(f"text={action}")
    expect(page.page.locator("#conversations li")).to_have_count(0)
    expect(page.page.locator("dialog")).to_have_count(0)


def test_a_database_that_is_deleted_under_the_page_is_made_anew(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.send("one")
    page.wait_done()
    other = page.page.context.new_page()
    other.goto(stand_in.url + "static/icon.svg")
    assert other.evaluate(DELETE_DATABASE) == "deleted"
    page.send("two")
    page.wait_done()
    page.page.reload()
    expect(page.page.locator(".message")).to_have_count(4)


@pytest.mark.parametrize("way", ["one", "all"])
def test_a_conversation_deleted_while_it_is_answered_stays_deleted(
    stand_in: StandIn, open_page: Any, way: str
) -> None:
    gate = threading.Event()
    stand_in.plan = lambda body: Plan(pieces=["One", " two"], gate=gate)
    page = open_page(stand_in.url)
    page.send("Count")
    expect(page.page.locator(".assistant .body")).to_have_text("One")
    page.page.click("#new-chat")
    if way == "one":
        page.page.click("#conversations [aria-label^=More]")
        page.page.click("text=Delete…")
        page.page.get_by_role("button", name="Delete", exact=True).click()
    else:
        delete_all(page.page)
    page.wait_until(lambda: stand_in.cancelled)
    gate.set()
    page.page.wait_for_timeout(600)
    page.page.reload()
    page.page.locator(".welcome").wait_for()
    expect(page.page.locator("#conversations li")).to_have_count(0)
    assert len(stand_in.cancelled) == 1


def test_an_address_opens_its_conversation(stand_in: StandIn, open_page: Any) -> None:
    """Also in a page that is open already; and what is no conversation's address changes nothing."""
    page = open_page(stand_in.url)
    page.send("one")
    page.wait_done()
    address = page.page.url
    page.page.click("#new-chat")
    page.send("two")
    page.wait_done()
    page.page.evaluate("address => (location.href = address)", address)
    expect(page.page.locator("#title")).to_have_text("one")
    page.page.locator(".skip").focus()
    page.page.keyboard.press("Enter")
    expect(page.page).to_have_url(address)
    expect(page.page.locator("#title")).to_have_text("one")


def test_a_search_ends_when_more_is_typed(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.page.evaluate(FILL, 1500)
    page.page.reload()
    page.page.locator("#conversations li").wait_for()
    looked = page.page.evaluate("""
        async () => {
          let looked = 0;
          const proceed = IDBCursor.prototype.continue;
          IDBCursor.prototype.continue = function () { looked += 1; proceed.call(this); };
          const search = document.getElementById('search');
          for (const letter of 'no such word') {
            search.value += letter;
            search.dispatchEvent(new Event('input'));
          }
          const note = document.getElementById('conversations-note');
          while (note.hidden) await new Promise((done) => setTimeout(done, 20));
          return looked;
        }
    """)
    assert 1500 <= looked < 2 * 1500


def test_a_long_conversation_is_not_drawn_again(stand_in: StandIn, open_page: Any) -> None:
    """A message that is sent touches nothing of those before it, where someone may be writing."""
    page = open_page(stand_in.url)
    page.page.evaluate(FILL, 1000)
    page.page.goto(stand_in.url + "#long")
    page.page.reload()
    expect(page.page.locator(".message")).to_have_count(1000)
    page.page.locator(".user").last.hover()
    page.page.locator("[aria-label='Edit and send again']").last.click()
    page.page.fill(".edit", "half a thought")
    page.page.evaluate("""
        () => {
          window.touched = 0;
          const log = document.getElementById('log');
          const old = new Set(document.querySelectorAll('.message'));
          const note = (records) => records.forEach(({ target, removedNodes }) => {
            const within = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
            const isGone = removedNodes.length && target === log;
            if (isGone || old.has(within.closest('.message'))) touched += 1;
          });
          new MutationObserver(note).observe(log, { childList: true, characterData: true, subtree: true });
        }
    """)
    page.send("One more")
    page.wait_done()
    expect(page.page.locator(".message")).to_have_count(1002)
    assert page.page.evaluate("touched") == 0
    assert page.page.input_value(".edit") == "half a thought"
