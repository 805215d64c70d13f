"""The page, the real server and a real model, from start to finish as a new user goes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web.expectations import expect

pytestmark = [pytest.mark.browser, pytest.mark.weights]

KEY = "a-key-for-this-test"
CONTEXT = 512


def serve(model: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    options = {"port": port, "max-model-len": CONTEXT, "kv-cache-bytes": 256 << 20, "dtype": "float32"}
    command = [sys.executable, "-m", "tinyllm", "serve", str(model)]
    command += [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(command, env=os.environ | {"TINYLLM_API_KEYS": KEY}, stderr=subprocess.PIPE)
    return process, f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[str]:
    process, url = serve(smollm2)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url + "ready").status_code == 200:
                break
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    else:
        process.kill()
        pytest.fail(process.communicate()[1].decode()[-2000:])
    yield url
    process.terminate()
    process.communicate(timeout=60)


def greedy(url: str, messages: list[dict[str, str]], tokens: int) -> str:
    body = {"messages": messages, "temperature": 0, "max_tokens": tokens}
    headers = {"authorization": f"Bearer {KEY}"}
    reply = httpx.post(url + "v1/chat/completions", json=body, headers=headers, timeout=120).json()
    return str(reply["choices"][0]["message"]["content"])


def metric(url: str, name: str) -> float:
    text = httpx.get(url + "metrics", headers={"authorization": f"Bearer {KEY}"}).text
    return sum(float(value) for value in re.findall(rf"^tinyllm:{name}(?:{{.*}})? (\S+)$", text, re.M))


@pytest.mark.parametrize(("width", "height"), [(360, 740), (1280, 800)])
def test_a_new_user(server: str, open_page: Any, width: int, height: int) -> None:
    page = open_page(server, width=width, height=height)
    page.allowed = ("401",)
    view = page.page
    view.set_default_timeout(60_000)
    expect.set_options(timeout=60_000)

    # The key.
    view.click("#notice >> text=Enter a key")
    view.get_by_role("textbox", name="API key").fill(KEY)
    view.keyboard.press("Enter")
    expect(view.locator(".welcome-title")).to_contain_text("smollm2-135m-instruct")

    # Settings: greedy, short, with probabilities; the server's own defaults are shown.
    view.click("#top-right [aria-label=Settings]")
    view.get_by_label("Preset").select_option("Precise")
    view.fill("#field-max_tokens", "40")
    view.click("[aria-label='Close the tools']")
    view.click("text=Probabilities")

    # A question: the answer is the model's own.
    question = "What is the capital of France?"
    page.send(question)
    page.wait_done()
    said = greedy(server, [{"role": "user", "content": question}], 40)
    kept = view.evaluate("() => [...document.querySelectorAll('.assistant .body')].at(-1).innerText")
    assert re.sub(r"\W+", "", kept) == re.sub(r"\W+", "", said)
    assert re.search(
        r"\d+ tokens · [\d.]+ tokens/s · first after", view.locator(".assistant .meta").last.inner_text()
    )
    assert re.match(rf"\d+ of {CONTEXT} tokens", view.inner_text(".context"))

    # Its tokens, and what the model saw.
    view.click("[aria-label='Tokens and probabilities']")
    tokens = view.locator(".tokens .token")
    assert tokens.count() >= 5
    view.focus(".tokens")
    expect(view.locator(".alternatives li")).to_have_count(5)
    view.click("[aria-label='Tokens and probabilities']")
    view.click("[aria-label='What the model saw']")
    expect(view.locator(".prompt mark").first).to_have_text("<|im_start|>")
    assert question in view.inner_text(".prompt")

    # The engine's numbers.
    view.get_by_role("tab", name="Engine").click()
    expect(view.locator(".facts").first).to_contain_text("Tokens generated since the start")
    assert metric(server, "generation_tokens_total") > 10
    view.click("[aria-label='Close the tools']")

    # A long answer, stopped: the engine has nothing left to do.
    view.click("#top-right [aria-label=Settings]")
    view.get_by_label("Preset").select_option("Creative")
    view.fill("#field-max_tokens", "400")
    view.click("[aria-label='Close the tools']")
    page.send("Tell me a very long story about a fox.")
    expect(view.locator(".assistant .body").last).to_have_text(re.compile(r"\w+ \w+"))
    view.click(".send")
    expect(view.locator(".note-row").last).to_contain_text("Stopped.")
    deadline = time.monotonic() + 10
    while metric(server, "num_requests_running") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert metric(server, "num_requests_running") == 0
    before = view.locator(".assistant .body").last.inner_text()

    # It goes on where it was.
    view.click("#top-right [aria-label=Settings]")
    view.fill("#field-max_tokens", "8")
    view.click("[aria-label='Close the tools']")
    view.click("text=Continue")
    page.wait_done()
    after = view.locator(".assistant .body").last.inner_text()
    assert after.startswith(before.rstrip()[:40])
    assert len(after) > len(before)


def test_a_full_context(server: str, open_page: Any) -> None:
    page = open_page(server)
    page.allowed = ("401", "400")
    page.page.click("#notice >> text=Enter a key")
    page.page.get_by_role("textbox", name="API key").fill(KEY)
    page.page.keyboard.press("Enter")
    expect(page.page.locator(".notice.warning")).to_have_count(0)
    page.send("word " * (2 * CONTEXT))
    expect(page.page.locator(".failure")).to_contain_text("longer than the model can read")
