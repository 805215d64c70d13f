"""Hostile answers in a real browser: they stay text, whatever they try."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.stand_in import Plan, StandIn
from tinyllm.server.page import POLICY

pytestmark = pytest.mark.browser

HERE = Path(__file__).parent
COUNT = 300

OUTSIDE = """
async () => {
  const { ALLOWED } = await import('/static/js/markdown/build.js');
  const outside = [];
  for (const element of document.querySelectorAll('.assistant .body *, .assistant .reasoning-body *')) {
    const attributes = ALLOWED[element.localName];
    const isPlain = attributes && element.namespaceURI === 'http://www.w3.org/1999/xhtml';
    if (!isPlain || [...element.attributes].some(({ name, value }) => !attributes[name]?.test(value))) {
      outside.push(element.outerHTML);
    }
  }
  return outside;
}
"""


INLINE_STYLE = """
() => {
  const style = document.createElement('style');
  style.textContent = '* { color: red }';
  document.head.append(style);
}
"""


@pytest.fixture(scope="module")
def hostile_strings() -> list[str]:
    if shutil.which("node") is None:
        pytest.skip("node makes the strings")
    show = f"console.log(JSON.stringify(hostileStrings({COUNT})))"
    script = f"import {{ hostileStrings }} from '{HERE / 'hostile.js'}'; {show}"
    command = ["node", "--input-type=module", "-e", script]
    made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    strings: list[str] = json.loads(made.stdout)
    assert len(set(strings)) > COUNT * 0.9
    return strings


def split_anywhere(text: str, chance: random.Random) -> list[str]:
    pieces = []
    while text:
        size = chance.randint(1, 12)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def test_hostile_answers_stay_text(stand_in: StandIn, open_page: Any, hostile_strings: list[str]) -> None:
    """0 dialogs, 0 reports of the policy, 0 elements off the list, nothing loaded from elsewhere."""
    chance = random.Random(11)
    page = open_page(stand_in.url)
    foreign: list[str] = []
    page.page.on("request", lambda request: foreign.append(request.url))
    page.page.on("popup", lambda popup: foreign.append(popup.url))
    seen = 0
    for start in range(0, COUNT, 50):
        texts = iter(hostile_strings[start : start + 50])
        stand_in.plan = lambda body, texts=texts: Plan(  # type: ignore[misc]
            pieces=[piece for text in texts for piece in (*split_anywhere(text, chance), "\n\n")],
            reasoning=split_anywhere(body["messages"][0]["content"], chance),
            rate=2000,
        )
        page.send(hostile_strings[start])
        page.wait_done()
        page.page.locator(".reasoning").last.evaluate("e => e.open = true")
        page.page.wait_for_timeout(100)
        assert page.page.evaluate(OUTSIDE) == []
        seen += page.page.locator(".assistant .body").last.locator("*").count()
        for link in page.page.locator(".assistant .body a").all()[:5]:
            assert link.get_attribute("rel") == "noopener noreferrer nofollow"
        page.page.click("#new-chat")
    assert seen > COUNT  # they were shown
    assert [url for url in foreign if not url.startswith(stand_in.url)] == []
    page.check()


def test_hostile_words_elsewhere_stay_text(stand_in: StandIn, open_page: Any) -> None:
    """In titles, messages of errors, the prompt, and what is imported."""
    text = "<img src=x onerror=alert(1)>"
    stand_in.plan = lambda body: Plan(status=400, code="invalid_value", message=text)
    page = open_page(stand_in.url)
    page.allowed = ("Failed to load resource",)
    page.send(text)
    page.page.locator(".failure").wait_for()
    page.page.click("[aria-label='What the model saw']")
    page.page.locator(".prompt mark").first.wait_for()
    conversation = {
        "title": text,
        "selected": {"__proto__": "constructor"},
        "messages": {"__proto__x": {"role": "user", "parent": "", "content": text}},
    }
    file = json.dumps({"format": "tinyllm.conversations", "conversations": [conversation]})
    page.page.click("text=Import, export, clear")
    with page.page.expect_file_chooser() as chooser:
        page.page.click("text=Import from a file")
    chooser.value.set_files({"name": "x.json", "mimeType": "application/json", "buffer": file.encode()})
    page.page.locator("#conversations li >> nth=1").wait_for()
    assert page.page.locator("img").count() == 0


def test_the_policy_holds(stand_in: StandIn, open_page: Any) -> None:
    """What the page itself never does is not possible either."""
    headers = httpx.get(stand_in.url).headers
    assert headers["content-security-policy"] == POLICY
    page = open_page(stand_in.url)
    page.allowed = ("violates", "require-trusted-types-for", "script-src", "style-src", "Trusted")
    with pytest.raises(Exception, match="TrustedHTML"):
        page.page.evaluate("() => { document.body.innerHTML = '<b>x</b>' }")
    page.page.evaluate(INLINE_STYLE)
    page.page.wait_for_timeout(100)
    assert any("style-src" in report for report in page.page.evaluate("reports"))


def test_nobody_may_frame_the_page(stand_in: StandIn, browser: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_content(f"<iframe src='{stand_in.url}'></iframe>")
    page.wait_for_timeout(500)
    assert all("draft" not in frame.content() for frame in page.frames[1:])
    context.close()


def test_a_key_of_an_object_is_no_conversation(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url + "#__proto__")
    page.send("Hi")
    page.wait_done()
    assert page.answer() == "Hello there."
