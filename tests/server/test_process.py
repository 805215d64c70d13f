"""The life of a server process: signals, exit codes, clients that go away or do not read, TLS."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.process import (
    ServerProcess,
    read_response,
    read_to_end,
    receive,
    request_bytes,
    server_process,
)

TEXT = "/v1/completions"
LONG = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with paced() as process:
        yield process


@contextlib.contextmanager
def paced(step: float = 0.005, **options: Any) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_STEP_SECONDS", str(step))
        with server_process(**options) as process:
            yield process


def open_stream(server: ServerProcess, **fields: Any) -> socket.socket:
    """Return a connection with a stream that has begun."""
    sock = server.connect()
    sock.sendall(request_bytes("POST", TEXT, {**LONG, **fields, "stream": True}))
    data = b""
    while b"data: {" not in data:
        data += receive(sock)
    return sock


def test_many_requests_on_one_connection(server: ServerProcess) -> None:
    with server.connect() as sock:
        for _ in range(20):
            sock.sendall(request_bytes("POST", TEXT, {"prompt": "a", "max_tokens": 1}))
            assert read_response(sock).status == 200
        sock.sendall(request_bytes("POST", TEXT, {"prompt": "a", "max_tokens": 2, "stream": True}))
        assert read_response(sock).body.endswith(b"data: [DONE]\n\n")
        sock.sendall(request_bytes("GET", "/health"))
        assert read_response(sock).status == 200


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("kind", ["stream", "plain", "n", "list"])
def test_clients_that_hang_up_stop_their_work(server: ServerProcess, kind: str, reset: bool) -> None:
    before = server.metric("requests_cancelled_total")
    body = {**LONG, "stream": kind == "stream", "n": 3 if kind == "n" else 1}
    body["prompt"] = ["a", "b", "c"] if kind == "list" else "a"
    sock = server.connect()
    sock.sendall(request_bytes("POST", TEXT, body))
    server.wait_until(lambda: server.metric("num_requests_running") > 0)
    if reset:  # not a polite end, but none at all
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    sock.close()
    started = time.monotonic()
    server.wait_idle()
    assert time.monotonic() - started < 2
    assert server.metric("requests_cancelled_total") > before
    assert server.metric("kv_cache_usage_perc") == 0


AHEAD = {
    "a line end": b"\r\n",
    "half a request": b"POST /v1/comp",
    "noise": b"\x00\x00\r\n\r\n",
    "requests": request_bytes("POST", TEXT, LONG) * 20,
    "a large body": request_bytes("POST", TEXT, b"x" * 900_000),
    "more than is taken": b"x" * 3_000_000,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ahead", AHEAD.values(), ids=AHEAD)
def test_clients_that_sent_more_and_hang_up_stop_their_work(
    server: ServerProcess, ahead: bytes, stream: bool
) -> None:
    before = server.metric("requests_cancelled_total")
    with server.connect(timeout=2) as sock:
        sock.sendall(request_bytes("POST", TEXT, {**LONG, "stream": stream}))
        server.wait_until(lambda: server.metric("num_requests_running") > 0)
        with contextlib.suppress(OSError):  # it has heard enough
            sock.sendall(ahead)
    started = time.monotonic()
    server.wait_idle()
    assert time.monotonic() - started < 2
    assert server.metric("requests_cancelled_total") == before + 1


def test_requests_sent_ahead_are_answered_in_order(server: ServerProcess) -> None:
    with server.connect() as sock:
        bodies = [{"prompt": "ab"[i % 2] * (i + 1), "max_tokens": 3, "stream": i == 3} for i in range(6)]
        sock.sendall(b"".join(request_bytes("POST", TEXT, body) for body in bodies))
        sock.sendall(request_bytes("GET", "/health", connection="close"))
        replies = read_to_end(sock)
    assert replies.count(b"HTTP/1.1 200") == 7
    counts = [int(count) for count in re.findall(rb'"prompt_tokens":(\d+)', replies)]
    assert counts == [1, 2, 3, 5, 6]
    assert replies.endswith(b'{"status":"ok"}')


def test_a_client_that_does_not_read_is_cut_off() -> None:
    with paced(0.0, write_timeout=0.5, stream_buffer_size=4, max_model_len=60_000) as server:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        sock.connect(("127.0.0.1", server.port))
        body = {"prompt": "a", "max_tokens": 50_000, "ignore_eos": True, "stream": True, "logprobs": 20}
        sock.sendall(request_bytes("POST", TEXT, body))
        server.wait_until(lambda: any("does not read" in line for line in server.lines))
        server.wait_idle()
        assert server.post(TEXT, {"prompt": "a"}).status == 200
        assert not read_to_end(sock).endswith(b"[DONE]\n\n")
        sock.close()


def test_health_answers_while_streams_run(server: ServerProcess) -> None:
    stack = contextlib.ExitStack()
    socks = [stack.enter_context(open_stream(server)) for _ in range(8)]
    drains = [threading.Thread(target=read_to_end, args=(sock,), daemon=True) for sock in socks]
    for thread in drains:
        thread.start()
    times = []
    for _ in range(50):
        started = time.monotonic()
        assert server.get("/health").status == 200
        times.append(time.monotonic() - started)
    for sock, thread in zip(socks, drains, strict=True):
        sock.shutdown(socket.SHUT_RDWR)
        thread.join()
    stack.close()
    assert sorted(times)[len(times) // 2] < 0.2
    server.wait_idle()


@pytest.mark.usefixtures("signals_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_idle_server_ends_at_once(number: int) -> None:
    with paced() as server:
        started = time.monotonic()
        server.signal(number)
        assert server.exit_code() == 0
        assert time.monotonic() - started < 3


def test_the_first_signal_drains() -> None:
    with paced(0.02, shutdown_timeout=20) as server:
        with open_stream(server, max_tokens=60) as running, server.connect():
            server.signal()
            server.wait_until(lambda: server.get("/ready").status == 503)
            refused = server.post(TEXT, {"prompt": "b"})
            assert (refused.status, refused.json["error"]["code"]) == (503, "server_shutting_down")
            assert refused.headers["retry-after"]
            assert server.get("/health").status == 200
            data = read_to_end(running)
        assert data.count(b'"finish_reason":"length"') == 1
        assert b"data: [DONE]\n\n" in data
        assert server.exit_code() == 0


def test_a_drain_that_takes_too_long_ends_streams_properly() -> None:
    with paced(0.01, shutdown_timeout=0.5, max_num_seqs=8) as server:
        socks = [open_stream(server) for _ in range(8)]
        started = time.monotonic()
        server.signal()
        for sock in socks:
            with sock:
                data = read_to_end(sock)
            assert b'"code":"server_shutting_down"' in data
            assert data.count(b"data: [DONE]\n\n") == 1
        assert server.exit_code() == 0
        assert time.monotonic() - started < 0.5 + 2


def test_the_second_signal_ends_now() -> None:
    with paced(0.01, shutdown_timeout=60) as server:
        with open_stream(server) as sock:
            server.signal(signal.SIGINT)
            server.wait_until(lambda: server.get("/ready").status == 503)
            started = time.monotonic()
            server.signal(signal.SIGINT)
            assert b"[DONE]" in read_to_end(sock)
        assert server.exit_code() == 0
        assert time.monotonic() - started < 2


@pytest.mark.parametrize("signals", [1, 2])
def test_a_step_that_hangs_holds_up_neither_the_end_nor_its_clients(signals: int) -> None:
    with paced(60, shutdown_timeout=0.5, sse_ping_interval=0.05) as server:
        with server.connect() as stream, server.connect() as plain:
            plain.sendall(request_bytes("POST", TEXT, LONG))
            stream.sendall(request_bytes("POST", TEXT, {**LONG, "stream": True}))
            assert b": ping" in receive(stream) + receive(stream)
            started = time.monotonic()
            for _ in range(signals):
                server.signal()
                server.wait_until(lambda: server.get("/ready").status == 503)
            events = read_to_end(stream)
            assert b'"code":"server_shutting_down"' in events
            assert b'"type":"server_error"' in events
            assert events.count(b"[DONE]") == 1
            whole = read_response(plain)
            assert (whole.status, whole.json["error"]["code"]) == (503, "server_shutting_down")
            assert "retry-after" in whole.headers  # of another server, where there are several
        assert server.exit_code(10) == 0
        assert time.monotonic() - started < 5
        assert not [line for line in server.lines if "Traceback" in line]


STILL_STARTING = """
import sys, time
from tinyllm.cli import main, options

def server_config(args):
    print("starting", flush=True)
    time.sleep(60)

options.server_config = server_config
sys.exit(main.main(["serve"]))
"""


@pytest.mark.usefixtures("signals_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_before_there_is_a_server(number: int) -> None:
    command = (sys.executable, "-c", STILL_STARTING)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("delay", [0.0, 0.2, 0.5, 1.0])
def test_signals_while_the_model_is_loaded(tiny_llama: Path, delay: float, signals: int) -> None:
    """At whatever moment they come; loading itself cannot be interrupted, so the process leaves it behind."""
    command = (sys.executable, "-m", "tinyllm", "serve", str(tiny_llama))
    with server_process(*command, ready=False) as server:
        time.sleep(delay)
        started = time.monotonic()
        for _ in range(signals):
            server.signal()
            time.sleep(0.05)
        assert server.exit_code(10) == 0
        assert time.monotonic() - started < 5
    assert not [line for line in server.lines if "Traceback" in line or "rror" in line]


def test_a_hang_up_is_ignored_under_nohup() -> None:
    command = ("nohup", sys.executable, "-m", "tests.server.fake_server")
    with server_process(*command) as server:
        server.signal(signal.SIGHUP)
        assert server.post(TEXT, {"prompt": "a", "max_tokens": 5}).status == 200
        server.signal(signal.SIGTERM)
        assert server.exit_code(10) == 0


def test_a_dead_engine_ends_the_process() -> None:
    with paced(0.01) as server:
        with open_stream(server) as sock:
            killer = server.post(TEXT, {"prompt": "\a", "stream": True})
            data = read_to_end(sock)
        assert (killer.status, killer.json["error"]["code"]) == (503, "engine_dead")
        assert b'"code":"engine_dead"' in data
        assert data.count(b"[DONE]") == 1
        assert b"bell" not in killer.body + data
        assert server.exit_code() == 1


def test_a_port_that_is_taken(tiny_llama: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        run = subprocess.run(
            [sys.executable, "-m", "tinyllm", "serve", str(tiny_llama)],
            env=environment(TINYLLM_PORT=sock.getsockname()[1]),
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert run.returncode == 2
    assert "cannot listen" in run.stderr
    assert "Traceback" not in run.stderr


def environment(**variables: object) -> dict[str, str]:
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "--allow-unauthenticated"),
        (["--workers", "2"], "batch together"),
        (["/no/such/model"], "there is no model"),
        (["--api-key-file", "/no/such/file"], "cannot be read"),
        (["--api-key-file", "/dev/zero"], "is not a regular file"),
        (["--config", "/dev/zero"], "is not a regular file"),
        (["--ssl-certfile", "/no/cert", "--ssl-keyfile", "/no/key"], "TLS file cannot be read"),
        (["--ssl-certfile", "/dev/zero", "--ssl-keyfile", "/dev/zero"], "TLS file is not a regular file"),
        (["--ssl-certfile", __file__, "--ssl-keyfile", __file__], "cannot be used"),
        (["--host", "203.0.113.9", "--allow-unauthenticated"], "cannot listen on 203.0.113.9"),
        (["--host", "no such host", "--allow-unauthenticated"], "cannot listen on no such host"),
        (["--prot", "1"], "did you mean --port?"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "tinyllm", "serve", "--port", "0", *flags]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert message in run.stderr
    assert "listening" not in run.stderr
    assert "Traceback" not in run.stderr


def test_json_logs_have_no_text_of_requests() -> None:
    with paced(log_format="json", log_level="debug", api_keys="sk-0123456789abcdef") as server:
        key = {"Authorization": "Bearer sk-0123456789abcdef"}
        assert server.post(TEXT, {"prompt": "my secret prompt", "max_tokens": 3}, **key).status == 200
        assert server.get("/nope%0d%0aFAKE").status == 401
        server.signal()
        server.exit_code()
        entries = [json.loads(line) for line in server.lines]
        access = [entry for entry in entries if entry["logger"] == "tinyllm.access"]
        assert access[0]["message"] == "POST /v1/completions 200"
        assert access[0]["request_id"]
        assert len(access[0]["caller"]) == 12
        assert not any("health" in entry["message"] for entry in access)
        text = "\n".join(server.lines)
        assert "secret" not in text
        assert "sk-0123456789" not in text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None or shutil.which("curl") is None:
        pytest.skip("needs openssl and curl")
    place = tmp_path_factory.mktemp("tls")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    command += ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return place / "cert.pem", place / "key.pem"


def curl(*arguments: str) -> str:
    return subprocess.run(
        ["curl", "-sS", "-N", *arguments], check=True, capture_output=True, text=True
    ).stdout


def test_http2_over_tls(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    with server_process(ready=False, ssl_certfile=cert, ssl_keyfile=key) as server:
        url = f"https://localhost:{server.port}"
        common = ["--cacert", str(cert), "--resolve", f"localhost:{server.port}:127.0.0.1"]
        retry = ["--retry", "20", "--retry-delay", "1"]
        assert "200 2" in curl(
            *common, *retry, "--http2", "-w", "%{http_code} %{http_version}", f"{url}/ready"
        )
        assert "200 1.1" in curl(*common, "--http1.1", "-w", "%{http_code} %{http_version}", f"{url}/ready")
        body = json.dumps({"prompt": "a", "max_tokens": 5, "stream": True})
        out = curl(*common, "--http2", "-H", "content-type: application/json", "-d", body, f"{url}{TEXT}")
        assert out.endswith("data: [DONE]\n\n")


def test_http2_without_tls_only_if_asked(server: ServerProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    prior = ["curl", "-sS", "--http2-prior-knowledge"]
    assert subprocess.run([*prior, f"{server.url}/health"], capture_output=True).returncode != 0
    assert curl("--http2", "-w", "%{http_version}", f"{server.url}/health").endswith("1.1")
    with server_process(h2c="true") as other:
        assert curl("--http2-prior-knowledge", "-w", " %{http_version}", f"{other.url}/health").endswith(" 2")
