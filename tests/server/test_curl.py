"""curl against the server: HTTP/1.1 and HTTP/2 over TLS, with a key; the same answers by either."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import ServerProcess
from tests.server.test_process import certificate, paced

__all__ = ["certificate"]  # a fixture

KEY = "sk-0123456789abcdef"
TEXT = "/v1/completions"

pytestmark = pytest.mark.slow


@dataclass
class Curl:
    """curl, told how to reach the server by one version of HTTP."""

    server: ServerProcess
    certificate: Path
    version: str

    def command(self, path: str, body: Any = None, *words: str, key: str = KEY) -> list[str]:
        command = ["curl", "-sS", "-N", f"--http{self.version}", "--cacert", str(self.certificate)]
        command += ["--resolve", f"localhost:{self.server.port}:127.0.0.1", "--max-time", "60"]
        command += ["-H", f"authorization: Bearer {key}"] if key else []
        if body is not None:
            command += ["-H", "content-type: application/json", "-d", json.dumps(body)]
        return [*command, *words, f"https://localhost:{self.server.port}{path}"]

    def __call__(self, path: str, body: Any = None, *words: str, key: str = KEY) -> tuple[int, str, str]:
        """Return status, version of HTTP and body."""
        command = self.command(path, body, "-w", "\n%{http_code} %{http_version}", *words, key=key)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        text, _, last = done.stdout.rpartition("\n")
        status, version = last.split()
        return int(status), version, text

    def metric(self, name: str) -> float:
        lines = self("/metrics")[2].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(f"tinyllm:{name}{{"))


@pytest.fixture(scope="module")
def tls(certificate: tuple[Path, Path]) -> Iterator[ServerProcess]:
    cert, key = certificate
    with paced(0.002, ready=False, ssl_certfile=cert, ssl_keyfile=key, api_keys=KEY) as server:
        curl = Curl(server, cert, "1.1")
        server.wait_until(lambda: curl("/ready")[0] == 200)
        yield server


@pytest.fixture(params=["1.1", "2"])
def curl(tls: ServerProcess, certificate: tuple[Path, Path], request: pytest.FixtureRequest) -> Curl:
    return Curl(tls, certificate[0], request.param)


def test_a_whole_answer_and_a_stream(curl: Curl) -> None:
    body = {"prompt": "a", "max_tokens": 8}
    status, version, text = curl(TEXT, body)
    assert (status, version) == (200, curl.version)
    whole = json.loads(text)["choices"][0]["text"]
    status, version, text = curl(TEXT, {**body, "stream": True})
    assert (status, version) == (200, curl.version)
    assert text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert "".join(event["choices"][0]["text"] for event in events) == whole


def test_errors(curl: Curl) -> None:
    plain = ("-d", "{}", "-H", "content-type: text/plain")
    cases: list[tuple[str, Any, tuple[str, ...], str, int, str]] = [
        ("/v1/models", None, (), "", 401, "invalid_api_key"),
        ("/v1/models", None, (), "sk-wrong-wrong-wrong", 401, "invalid_api_key"),
        ("/nope", None, (), KEY, 404, "not_found"),
        (TEXT, None, (), KEY, 405, "method_not_allowed"),
        (TEXT, {"prompt": "a", "n": 0}, (), KEY, 400, "invalid_value"),
        (TEXT, {"prompt": "x" * 5000}, (), KEY, 400, "context_length_exceeded"),
        (TEXT, None, plain, KEY, 415, "unsupported_media_type"),
        (TEXT, {"prompt": "a"}, ("-H", "host: evil.example"), KEY, 421, "unknown_host"),
        (f"/{'x' * 9000}", None, (), KEY, 414, "url_too_long"),
    ]
    for path, body, words, key, status, code in cases:
        found, version, text = curl(path, body, *words, key=key)
        assert (found, version) == (status, curl.version), (path[:40], text)
        assert json.loads(text)["error"]["code"] == code


def test_a_body_that_is_too_large(curl: Curl, tmp_path: Path) -> None:
    large = tmp_path / "body.json"
    large.write_text(json.dumps({"prompt": "x" * (2 << 20)}))
    status, _, text = curl(TEXT, None, "-H", "content-type: application/json", "--data-binary", f"@{large}")
    assert (status, json.loads(text)["error"]["code"]) == (413, "body_too_large")
    assert curl("/health")[0] == 200


def test_headers_of_a_stream(curl: Curl) -> None:
    body = {"prompt": "a", "max_tokens": 1, "stream": True}
    _, _, text = curl(TEXT, body, "-D", "-", "-H", "x-request-id: mine")
    head = text.lower().partition("data:")[0]
    for line in ("content-type: text/event-stream; charset=utf-8", "cache-control: no-cache"):
        assert line in head
    assert "x-request-id: mine" in head
    assert "x-accel-buffering: no" in head


def test_a_stream_that_is_given_up_ends_in_the_server(curl: Curl) -> None:
    before = curl.metric("requests_cancelled_total")
    body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with subprocess.Popen(curl.command(TEXT, body), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"data: {")
        process.terminate()
    curl.server.wait_until(lambda: curl.metric("num_requests_running") == 0)
    assert curl.metric("requests_cancelled_total") == before + 1
    assert curl.metric("kv_cache_usage_perc") == 0


def test_streams_beside_each_other_on_one_connection(
    tls: ServerProcess, certificate: tuple[Path, Path]
) -> None:
    curl = Curl(tls, certificate[0], "2")
    body = {"prompt": "a", "max_tokens": 40, "stream": True}
    [*command, url] = curl.command(TEXT, body, "--parallel", "-w", "%{num_connects}\n")
    done = subprocess.run([*command, *([url] * 8)], check=True, capture_output=True, text=True)
    assert done.stdout.count("data: [DONE]\n\n") == 8
    connects = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    assert len(connects) == 8
    assert sum(connects) < 8
