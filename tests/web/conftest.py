"""A real browser, and the scripted server it talks to."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.web.stand_in import StandIn

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or ""
AXE_CORE = "axe-core@4.14.1"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium."""
    reason = ""
    if not CHROMIUM:
        reason = "chromium is not installed (Debian: apt-get install chromium; or set CHROMIUM to its path)"
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        reason = "playwright is not installed (pip install -e '.[browser]')"
    if reason:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def running_stand_in() -> Iterator[StandIn]:
    server = StandIn()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def stand_in(running_stand_in: StandIn) -> StandIn:
    """The scripted server, with nothing left of the test before."""
    running_stand_in.reset()
    return running_stand_in


WATCH = """
window.reports = [];
document.addEventListener('securitypolicyviolation', (event) => {
  reports.push(event.violatedDirective + ' ' + event.blockedURI);
});
"""


class Watched:
    """A page, and all that it complained about."""

    def __init__(self, context: Any) -> None:
        self.page = context.new_page()
        self.problems: list[str] = []
        self.allowed: tuple[str, ...] = ()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self._dialog)
        self.page.add_init_script(WATCH)

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.problems.append(message.text)

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def send(self, text: str) -> None:
        """Write a message and send it."""
        self.page.fill("#draft", text)
        self.page.press("#draft", "Enter")

    def wait_done(self) -> None:
        """Wait until no answer is under way."""
        self.page.locator(".send[aria-label=Send]").wait_for()
        self.page.locator(".running").wait_for(state="detached")

    def wait_until(self, holds: Callable[[], Any]) -> None:
        """Wait for what cannot be seen on the page."""
        deadline = time.monotonic() + 15
        while not holds() and time.monotonic() < deadline:
            self.page.wait_for_timeout(50)

    def answer(self) -> str:
        """The text of the last answer."""
        return str(self.page.locator(".assistant .body").last.inner_text())

    def check(self) -> None:
        """Fail if anything was complained about that the test did not expect."""
        self.problems += self.page.evaluate("window.reports")
        unexpected = [text for text in self.problems if not any(part in text for part in self.allowed)]
        assert unexpected == []


@pytest.fixture
def open_page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Opens pages: ``open_page(url, width=..., dark=...)``. They are checked for problems at the end."""
    opened: list[tuple[Any, Watched]] = []

    def open_(
        url: str, *, width: int = 1280, height: int = 800, dark: bool = False, **options: Any
    ) -> Watched:
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, **options
        )
        context.set_default_timeout(15_000)
        watched = Watched(context)
        opened.append((context, watched))
        watched.page.goto(url)
        watched.page.wait_for_selector("#composer-bar button")
        return watched

    yield open_
    failed = getattr(request.node, "failed", False)
    for context, watched in opened:
        try:
            if not failed:
                watched.check()
        finally:
            context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Remember that a test failed, so that its fixtures do not complain on top."""
    outcome: Any = yield
    if outcome.get_result().when == "call" and outcome.get_result().failed:
        item.failed = True  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def axe_source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core, which looks for what people with disabilities would stumble on."""
    folder = tmp_path_factory.mktemp("axe")
    try:
        command = ["npm", "pack", "--silent", AXE_CORE]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=120)
    except (OSError, subprocess.SubprocessError):
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{AXE_CORE} cannot be fetched with npm")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, filter="data")
    return (folder / "package/axe.min.js").read_text(encoding="utf-8")
