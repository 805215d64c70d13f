"""The clients' code in docs/how-to/serve.md runs as it stands there, but for the server's port."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.environments import environment
from tests.server.process import ServerProcess, server_process

pytestmark = [pytest.mark.clients, pytest.mark.slow]

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "serve.md"
URL = "http://127.0.0.1:8000"
NAME = "SmolLM2-135M-Instruct"
"""What the page's server is called."""

BLOCKS = [
    (language, code)
    for language, code in re.findall(r"^```(py|sh)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    if URL in code
]


def name_of(block: tuple[str, str]) -> str:
    """Return the client of a block."""
    names: list[str] = re.findall(r"openai(?= import)|langchain|litellm|curl|llm", block[1])
    return names[0]


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[ServerProcess]:
    command = (sys.executable, "-m", "tinyllm", "serve", str(tiny_llama), "--num-threads", "1")
    with server_process(*command, served_model_name=NAME) as process:
        yield process


def test_the_page_shows_every_client() -> None:
    assert {name_of(block) for block in BLOCKS} == {"curl", "openai", "langchain", "litellm", "llm"}


@pytest.mark.parametrize(("language", "code"), [pytest.param(*block, id=name_of(block)) for block in BLOCKS])
def test_code_of_the_page(
    language: str, code: str, server: ServerProcess, python: Callable[[str], Path], tmp_path: Path
) -> None:
    if code.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("needs curl")
    interpreter = python("newest")
    shell = ["bash", "-euc"] if language == "sh" else [str(interpreter), "-c"]
    before = server.metric("generation_tokens_total")
    done = subprocess.run(
        [*shell, code.replace(URL, server.url)],
        env={
            **environment(),
            "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
            "LLM_USER_PATH": str(tmp_path),
            "OPENAI_API_KEY": "",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
    assert '"error"' not in done.stdout
    assert server.metric("generation_tokens_total") > before
