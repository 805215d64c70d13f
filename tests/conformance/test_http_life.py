"""Cases D72 and D73 of shared/design/conformance.md: signals, and routes without a key."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from tests.server.harness import served
from tests.server.process import read_to_end
from tests.server.test_process import open_stream, paced

KEY = "sk-0123456789abcdef"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_d72_one_signal_lets_a_stream_finish(number: int) -> None:
    with paced(0.02, shutdown_timeout=20) as server, open_stream(server, max_tokens=60) as running:
        server.signal(number)
        data = read_to_end(running)
        assert b'"finish_reason":"length"' in data
        assert b"data: [DONE]\n\n" in data
        assert server.exit_code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM)])
def test_d72_two_signals_end_it_at_once(numbers: tuple[int, int]) -> None:
    with paced(0.02, shutdown_timeout=60) as server, open_stream(server) as running:
        server.signal(numbers[0])
        server.wait_until(lambda: server.get("/ready").status == 503)
        started = time.monotonic()
        server.signal(numbers[1])
        data = read_to_end(running)
        assert b'"error":' in data
        assert data.count(b"data: [DONE]\n\n") == 1
        assert server.exit_code() == 0
        assert time.monotonic() - started < 2


def test_d72_the_library_sets_no_handlers() -> None:
    code = (
        "import signal\n"
        "before = [signal.getsignal(number) for number in signal.valid_signals()]\n"
        "import tinyllm, tinyllm.app, tinyllm.server.run\n"
        "from tinyllm import AsyncEngine, Engine\n"
        "assert before == [signal.getsignal(number) for number in signal.valid_signals()]\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.asyncio
async def test_d73_every_route_needs_the_key() -> None:
    """Also what is not there; but health, the page, and a browser's question before a request do not."""
    origin = "https://app.example"
    async with served(api_keys=(KEY,), cors_origins=(origin,)) as app:
        opened = set()
        for rule in app.app.url_map.iter_rules():
            path = rule.rule.replace("<path:name>", "a/b").replace("<path:request_id>", "a")
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"):
                if method in ("PUT", "PATCH") or method in (rule.methods or ()):
                    answer = await app.get(path, method)
                    opened |= {path} if answer.status != 401 else set()
            question = {"Origin": origin, "Access_Control_Request_Method": "POST"}
            assert (await app.get(path, "OPTIONS", **question)).status == 204, path
        assert opened == {"/", "/health", "/live", "/ready", "/static/a/b"}
        for path in ("/nope", "/v2/models", "/inference/v1/generate", "/admin", "//", "/v1/models/../../x"):
            assert (await app.get(path)).status == (200 if path == "//" else 401), path
