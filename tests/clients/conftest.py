"""A server as users start it, and the environments of the clients that talk to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import environment, python_of
from tests.server.process import ServerProcess, server_process

KEY = "sk-0123456789abcdef"
MODEL = "tiny-llama"
SCRIPTS = Path(__file__).parent / "scripts"

Results = dict[str, Any]
Client = Callable[..., Results]


@contextmanager
def serve(model: Path, **options: Any) -> Iterator[ServerProcess]:
    """Run ``tinyllm serve`` over a checkpoint, with a key."""
    command = (sys.executable, "-m", "tinyllm", "serve", str(model), "--dtype", "float32")
    with server_process(
        *command, "--num-threads", "1", "--public-metrics", api_keys=KEY, **options
    ) as process:
        yield process


@pytest.fixture(scope="session")
def server(tiny_llama: Path) -> Iterator[ServerProcess]:
    """A server over a random Llama."""
    with serve(tiny_llama) as process:
        yield process


@pytest.fixture(scope="session")
def python() -> Callable[[str], Path]:
    """Return an environment's interpreter; skips where there is no package index, but not in CI."""

    def get(name: str) -> Path:
        try:
            return python_of(name)
        except subprocess.CalledProcessError as error:
            if os.environ.get("CI"):
                pytest.fail(f"the environment {name} cannot be made: {error.stderr[-2000:]}")
            pytest.skip(f"the environment {name} cannot be made here")

    return get


@pytest.fixture(scope="session")
def client(server: ServerProcess, python: Callable[[str], Path]) -> Client:
    """Return what runs a client's script in its environment, and returns what each of its calls gave."""

    def run(name: str, script: str, to: ServerProcess = server) -> Results:
        command = [str(python(name)), str(SCRIPTS / f"{script}.py"), to.url, KEY, MODEL]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results: Results = json.loads(done.stdout.splitlines()[-1])
        return results

    return run
