"""The page in a real browser: answers that are not what this server sends, whatever may have come between."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.web.expectations import expect
from tests.web.stand_in import PROPS, Plan, StandIn

pytestmark = pytest.mark.browser

REFUSED = ("Failed to load resource",)
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: Any, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}, **more}]})


FINISH = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
WHOLE = [delta("a "), FINISH, DONE]
TOKEN = {"token": "a", "logprob": None, "top_logprobs": None}

READ = {
    "lines that end as on Windows": [each.replace(b"\n", b"\r\n") for each in WHOLE],
    "no farewell": [delta("a"), FINISH],
    "no finish": [delta("a"), DONE],
    "no choices": [event({}), event({"choices": None}), event({"choices": [None]}), *WHOLE],
    "no delta": [event({"choices": [{"delta": None}]}), *WHOLE],
    "bytes that are no text": [b'data: {"choices":[{"delta":{"content":"a\xff"}}]}\n\n', FINISH, DONE],
    "half a character": [
        b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"\\ude00"}}]}\n\n',
        DONE,
    ],
    "no token": [delta("a", logprobs={"content": [TOKEN]}), DONE],
    "no numbers": [event({"choices": [], "usage": 5}), *WHOLE],
    "texts for numbers": [
        delta("a"),
        event({"usage": {"completion_tokens": "x", "total_tokens": {}}}),
        FINISH,
        DONE,
    ],
    "numbers without end": [
        delta("a"),
        event({"usage": {"completion_tokens": 1e300, "total_tokens": 1e300}}),
        FINISH,
        DONE,
    ],
}


def test_what_can_be_read_is_shown(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    for name in READ:
        stand_in.plan = lambda body: Plan(raw=READ[body["messages"][0]["content"]])
        page.send(name)
        page.wait_done()
        assert page.answer().startswith("a"), name
        assert page.page.locator(".failure, .note-row, .notice").count() == 0, name
        numbers = page.page.inner_text(".assistant .meta") + page.page.inner_text(".context")
        assert "NaN" not in numbers, name
        assert len(numbers) < 120, name
        page.page.click("#new-chat")


FAILS = {
    "nothing": ([], "The connection broke in the middle"),
    "an end in between": ([delta("a")], "The connection broke in the middle"),
    "a page": ([b"<html>Log in</html>"], "The connection broke in the middle"),
    "null": ([delta("a"), b"data: null\n\n", *WHOLE], "The answer cannot be read"),
    "no JSON": ([delta("a"), b"data: {oops\n\n", *WHOLE], "The answer cannot be read"),
    "no list": ([delta("a", logprobs={"content": 5}), *WHOLE], "The answer cannot be read"),
    "an error of another form": ([event({"error": "no"}), DONE], "Something failed on the server"),
    "an error of an odd kind": (
        [event({"error": {"code": "constructor", "message": {}}}), DONE],
        "Something failed on the server",
    ),
}


def test_what_cannot_be_read_is_told(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    for name, (_, words) in FAILS.items():
        stand_in.plan = lambda body: Plan(raw=FAILS[body["messages"][0]["content"]][0])
        page.send(name)
        expect(page.page.locator(".failure-title")).to_have_text(words)
        for internal in ("undefined", "Cannot", "is not", "Unexpected"):
            assert internal not in page.page.inner_text(".failure"), name
        page.page.reload()
        expect(page.page.locator(".failure-title")).to_have_text(words)
        expect(page.page.locator(".notice")).to_have_count(0)
        page.page.click("#new-chat")


WHOLES = [
    b"",
    b"<html>",
    b"null",
    b"{}",
    b'{"choices":[null]}',
    b'{"error":{"message":"x"}}',
    b'{"choices":[',
]


def test_a_whole_answer_that_cannot_be_read_is_told(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.page.click("#top-right [aria-label=Settings]")
    page.page.get_by_label("Show the answer while it is made").uncheck()
    for cut_after, words in ((None, "The answer cannot be read"), (0, "The connection broke in the middle")):
        for raw in WHOLES:
            plan = Plan(raw=[raw], content_type="application/json", cut_after=cut_after)
            stand_in.plan = lambda body, plan=plan: plan  # type: ignore[misc]
            page.send("Hi")
            expect(page.page.locator(".failure-title")).to_have_text(words)
            page.page.click("#new-chat")


def test_an_empty_answer_is_told(stand_in: StandIn, open_page: Any) -> None:
    page = open_page(stand_in.url)
    for pieces in ([DONE], [b": wait\n\n", DONE], [FINISH, DONE]):
        stand_in.plan = lambda body, pieces=pieces: Plan(raw=pieces)  # type: ignore[misc]
        page.send("Hi")
        expect(page.page.locator(".note-row")).to_have_text("The answer is empty.")
        page.page.click("#new-chat")


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>"])
def test_a_refusal_of_any_form_has_words(stand_in: StandIn, open_page: Any, body: bytes) -> None:
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    for status in (400, 401, 403, 404, 405, 413, 415, 422, 500, 502, 503, 504, 599):
        stand_in.replies["/v1/chat/completions"] = (status, "text/html", body)
        page.send("Hi")
        expect(page.page.locator(".failure-title")).to_have_text(re.compile("^(The|This|Something) .+"))
        assert "html" not in page.page.inner_text(".failure")
        if status in (400, 404, 500, 502):
            expect(page.page.locator(".failure")).to_contain_text(f"Status {status}.")
        page.page.click("#new-chat")


def as_json(value: Any) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps(value).encode()


ODD = {
    "no props": {"/props": (404, "text/html", b"")},
    "a page for props": {"/props": (200, "text/html", b"<html>")},
    "empty props": {"/props": as_json({})},
    "null for props": {"/props": as_json(None)},
    "a list for props": {"/props": as_json([])},
    "no numbers in props": {"/props": (200, "application/json", b'{"max_model_len":NaN}')},
    "texts in props": {"/props": as_json(PROPS | {"max_model_len": "x", "sampling_defaults": 5})},
    "no length": {"/props": as_json(PROPS | {"max_model_len": 0})},
    "a length without end": {"/props": as_json(PROPS | {"max_model_len": 1e308, "model": "m" * 5000})},
    "a page for ready": {"/ready": (200, "text/html", b"<html>")},
    "a page for metrics": {"/metrics": (200, "text/html", b"<html>" * 1000)},
    "no numbers in metrics": {
        "/metrics": (
            200,
            "text/plain",
            b"tinyllm:num_requests_running NaN\ntinyllm:kv_cache_usage_perc +Inf\n",
        )
    },
    "a number without end in metrics": {
        "/metrics": (200, "text/plain", b"tinyllm:generation_tokens_total 1e308\n")
    },
    "an empty prompt": {"/v1/chat/completions/render": as_json({})},
    "a prompt of another form": {"/v1/chat/completions/render": as_json({"prompt": 5, "tokens": [None]})},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_facts_about_the_server_break_nothing(stand_in: StandIn, open_page: Any, name: str) -> None:
    stand_in.replies = ODD[name]
    page = open_page(stand_in.url)
    page.allowed = REFUSED
    page.page.click("#top-right [aria-label=Engine]")
    page.page.wait_for_timeout(1100)
    shown = page.page.inner_text("#panel")
    page.page.get_by_role("tab", name="Settings").click()
    shown += str(page.page.get_attribute("#field-temperature", "placeholder"))
    page.page.click("[aria-label='Close the tools']")
    page.send("Hi")
    page.wait_done()
    assert page.answer() == "Hello there."
    page.page.locator("[aria-label='What the model saw']").click()
    expect(page.page.locator(".prompt-head .help")).not_to_have_text("Asking the server…")
    shown += page.page.inner_text("body")
    assert "NaN" not in shown
    assert "undefined" not in shown
    assert "[object" not in shown
    assert "0" * 40 not in shown.replace(",", "")
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_prompt_of_hundreds_of_thousands_of_tokens_is_shown(stand_in: StandIn, open_page: Any) -> None:
    tokens = [{"text": "a", "special": False}] * 200_000
    rendered = {"prompt": "a" * 200_000, "count": 200_000, "max_model_len": 1 << 20, "tokens": tokens}
    stand_in.replies["/v1/chat/completions/render"] = as_json(rendered)
    page = open_page(stand_in.url)
    page.send("Hi")
    page.wait_done()
    page.page.locator("[aria-label='What the model saw']").click()
    expect(page.page.locator(".prompt-head .help")).to_contain_text("200,000 tokens")
    assert page.page.evaluate("document.querySelector('.prompt').textContent.length") == 200_000
    assert page.page.evaluate("document.querySelector('.prompt').childNodes.length") == 1


CUT_ANYWHERE = """
async (text) => {
  const [{ Api }, { Run }] = await Promise.all(['api', 'run'].map((name) => import(`/static/js/${name}.js`)));
  const bytes = new TextEncoder().encode(text);
  const real = window.fetch;
  const seen = [];
  for (let at = 0; at <= bytes.length; at += 1) {
    for (const breaks of [false, true]) {
      window.fetch = async () => new Response(new ReadableStream({
        start: (controller) => at && controller.enqueue(bytes.subarray(0, at)),
        pull: (controller) => (breaks ? controller.error(new TypeError('cut')) : controller.close()),
      }));
      const message = { id: 'x', role: 'assistant', content: '' };
      await new Run(new Api(() => ''), { stream: true }, message).start();
      seen.push([at, message.content, message.status, message.failure?.kind ?? null]);
    }
  }
  window.fetch = real;
  return seen;
}
"""


def test_a_connection_that_dies_at_any_byte(stand_in: StandIn, open_page: Any) -> None:
    """What had come is kept, and it is whole exactly from the finish on."""
    text = (event({"choices": []}) + delta("é🎉") + b": wait\r\n\r\n" + delta(" b") + FINISH + DONE).decode()
    text = text.replace("\\u00e9", "é").replace("\\ud83c\\udf89", "🎉")
    finish = len(text[: text.index('"stop"')].encode())
    finish += len(text[text.index('"stop"') :].split("\n\n")[0].encode()) + 2
    page = open_page(stand_in.url)
    contents = []
    for at, content, status, kind in page.page.evaluate(CUT_ANYWHERE, text):
        contents.append(content)
        assert (status, kind) == (("done", None) if at >= finish else ("failed", "broken")), at
    assert contents == sorted(contents, key=len)
    assert set(contents) == {"", "é🎉", "é🎉 b"}
