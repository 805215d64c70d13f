"""Ctrl-C, in processes of their own: it ends a command soon and in one word, whatever it waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.artifacts.hub_server import Hub

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends signals")

SECONDS = 15
"""For a process that ends in one, on a machine that is busy. A transfer takes longer by far."""


@pytest.fixture
def fetching(tiny_llama: Path) -> Iterator[tuple[Hub, threading.Event]]:
    """A Hub whose weights never come, and the event that they are asked for."""
    asked, over = threading.Event(), threading.Event()

    def hold(method: str, path: str) -> None:
        if method == "GET" and path.endswith(".safetensors"):
            asked.set()
            over.wait()

    commit = "c" * 40
    files = {file.name: file.read_bytes() for file in tiny_llama.iterdir()}
    hub = Hub(repos={"org/tiny": {commit: files}}, branches={("org/tiny", "main"): commit}, fail=hold)
    server = hub.start()
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]  # they hang up
    yield hub, asked
    over.set()
    server.shutdown()
    server.server_close()


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tinyllm", *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "0", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job inherits that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def interrupt(process: subprocess.Popen[str], times: int = 1) -> None:
    """Send Ctrl-C; the process must end at once, with the code and the one word for that."""
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    try:
        shown = process.communicate(timeout=SECONDS)[1]
    finally:
        process.kill()
    assert process.returncode == 130, shown
    assert shown.endswith("interrupted\n")
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("command", "times"),
    [
        ("pull", 1),
        ("inspect", 1),
        ("tokenize", 1),
        ("generate", 1),
        ("chat", 1),
        ("pull", 3),
        ("generate", 3),
    ],
)
def test_while_a_model_is_fetched(
    command: str, times: int, fetching: tuple[Hub, threading.Event], tmp_path: Path
) -> None:
    hub, asked = fetching
    arguments = {
        "pull": ["org/tiny"],
        "inspect": ["org/tiny"],
        "tokenize": ["Hi", "--model", "org/tiny"],
        "generate": ["--prompt", "Hi", "--model", "org/tiny"],
        "chat": ["Hi", "--model", "org/tiny"],
    }
    process = start(command, *arguments[command], HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path))
    assert asked.wait(60)
    interrupt(process, times)


@pytest.mark.weights
@pytest.mark.parametrize("command", ["generate", "chat"])
def test_while_it_answers(command: str, smollm2: Path) -> None:
    words = {"generate": ["--prompt", "Hi"], "chat": ["Hi"]}[command]
    process = start(command, *words, "--model", str(smollm2), "--max-tokens", "2000", "--ignore-eos")
    assert process.stdout is not None
    assert process.stdout.read(1)
    interrupt(process)
