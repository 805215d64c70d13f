"""HTTP/2 over TLS from clients that mean harm: each costs the server little, and other clients nothing."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import hpack
import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.server.process import ServerProcess, read_to_end, request_bytes, server_process

pytestmark = pytest.mark.slow

STREAM = b'{"prompt":"a","max_tokens":1000,"ignore_eos":true,"stream":true}'
HEADERS = [(":method", "GET"), (":path", "/health"), (":scheme", "https"), (":authority", "localhost")]
MAX_GROWTH = 16 << 20
MAX_HEALTH = 1.0
"""Seconds that the server computes while /health waits: other processes do not add to them."""


def post(path: str) -> list[tuple[str, str]]:
    return [(":method", "POST"), (":path", path), *HEADERS[2:], ("content-type", "application/json")]


@dataclass
class Secure:
    """A server that speaks TLS, and how to talk to it."""

    process: ServerProcess
    certificate: Path

    def connect(self, *protocols: str, buffer: int | None = None) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.set_alpn_protocols(list(protocols))
        return context.wrap_socket(connect(self.process, buffer), server_hostname="localhost")

    def get(self, path: str) -> bytes:
        with self.connect("http/1.1") as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            data = b""
            while part := sock.recv(65536):
                data += part
        return data

    def metric(self, name: str) -> float:
        values = re.findall(
            rf"^tinyllm:{name}(?:\{{.*\}})? (\S+)$", self.get("/metrics").decode(), re.MULTILINE
        )
        return sum(map(float, values))

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


def connect(process: ServerProcess, buffer: int | None = None) -> socket.socket:
    """Return a connection; ``buffer`` is how many bytes wait on this side to be read."""
    sock = socket.socket()
    sock.settimeout(10)
    if buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.connect(("127.0.0.1", process.port))
    return sock


class Client:
    """One HTTP/2 connection."""

    def __init__(self, server: Secure, buffer: int | None = None) -> None:
        self.sock = server.connect("h2", buffer=buffer)
        options = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        self.h2 = h2.connection.H2Connection(options)
        self.h2.initiate_connection()
        self.flush()

    def flush(self, more: bytes = b"") -> None:
        self.sock.sendall(self.h2.data_to_send() + more)

    def request(self, stream: int, headers: list[tuple[str, str]], body: bytes | None = None) -> None:
        self.h2.send_headers(stream, headers, end_stream=body is None)
        if body is not None:
            self.h2.send_data(stream, body, end_stream=True)

    def events(
        self, until: Callable[[list[h2.events.Event]], bool], seconds: float = 10
    ) -> list[h2.events.Event]:
        """Read until enough has come, or the server closes."""
        self.sock.settimeout(seconds)
        found: list[h2.events.Event] = []
        with contextlib.suppress(OSError):
            while not until(found) and (data := self.sock.recv(65536)):
                found += self.h2.receive_data(data)
        return found

    def last_words(self) -> ErrorCodes | int | None:
        """Return why the server ended the connection; None if it did not."""
        events = self.events(lambda _: False)
        codes = [event.error_code for event in events if isinstance(event, h2.events.ConnectionTerminated)]
        return codes[0] if codes else None


def ended(*streams: int) -> Callable[[list[h2.events.Event]], bool]:
    def check(events: list[h2.events.Event]) -> bool:
        ends = (h2.events.StreamEnded, h2.events.StreamReset)
        return set(streams) <= {event.stream_id for event in events if isinstance(event, ends)}

    return check


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    place = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost"
    command += " -addext subjectAltName=DNS:localhost"
    files = ["-keyout", str(place / "key.pem"), "-out", str(place / "cert.pem")]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    tls = {"ssl_certfile": place / "cert.pem", "ssl_keyfile": place / "key.pem"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_STEP_SECONDS", "0.005")
        with server_process(ready=False, write_timeout=1, keep_alive_timeout=20, **tls) as process:
            secure = Secure(process, place / "cert.pem")
            process.wait_until(lambda: b" 200" in secure.get("/ready")[:20])
            yield secure


@pytest.fixture
def client(server: Secure, watched: None) -> Iterator[Client]:
    client = Client(server)
    yield client
    client.sock.close()


@pytest.fixture
def watched(server: Secure) -> Iterator[None]:
    """While a client does its worst, others are served; after it nothing is left, and no fault in the log."""
    before, slowest, done = server.memory(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal slowest
        while not done.is_set():
            started = server.process.processor_seconds()
            assert b" 200" in server.get("/health")[:20]
            slowest = max(slowest, server.process.processor_seconds() - started)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    done.set()
    watcher.join()
    assert slowest < MAX_HEALTH
    for name in ("num_requests_running", "num_requests_waiting"):
        server.process.wait_until(lambda name=name: server.metric(name) == 0)
    assert server.memory() - before < MAX_GROWTH
    assert not [line for line in server.process.lines if "Traceback" in line or "ERROR" in line]


def finished_whole(server: Secure) -> float:
    text = server.get("/metrics").decode()
    return float(re.findall(r'request_success_total\{[^}]*finished_reason="length"[^}]*\} (\S+)', text)[0])


def test_an_answer_before_the_whole_body_leaves_the_connection_as_it_was(client: Client) -> None:
    client.h2.send_headers(1, post("/nope"))
    client.h2.send_data(1, b"x")
    client.flush()
    client.events(ended(1))
    client.h2.send_data(1, b"x" * 1000)
    client.request(3, HEADERS)
    client.flush()
    answers = [e for e in client.events(ended(3)) if isinstance(e, h2.events.ResponseReceived)]
    assert dict(answers[0].headers)[b":status"] == b"200"


@pytest.mark.parametrize(
    "headers",
    [
        [(":method", "GÉT"), *HEADERS[1:]],
        [HEADERS[0], (":path", "/é"), *HEADERS[2:]],
        [(":method", "CONNECT"), (":authority", "localhost")],
        [(":method", "CONNECT"), (":protocol", "websocket"), *HEADERS[1:]],
    ],
    ids=["method", "path", "tunnel", "websocket"],
)
def test_what_is_no_plain_request_is_refused_alone(client: Client, headers: list[tuple[str, str]]) -> None:
    client.request(1, headers)
    client.request(3, HEADERS)
    client.flush()
    events = client.events(ended(1, 3))
    answers = {e.stream_id: dict(e.headers) for e in events if isinstance(e, h2.events.ResponseReceived)}
    assert {stream: answer[b":status"] for stream, answer in answers.items()} == {1: b"400", 3: b"200"}
    assert re.fullmatch(rb"[0-9a-f]{32}", answers[1][b"x-request-id"])
    body = b"".join(e.data for e in events if isinstance(e, h2.events.DataReceived) and e.stream_id == 1)
    assert json.loads(body)["error"]["code"] == "bad_request"


def test_what_is_no_plain_request_is_reset_where_there_is_no_room_to_answer(client: Client) -> None:
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.request(1, [HEADERS[0], (":path", "/é"), *HEADERS[2:]])
    client.request(3, [(":method", "HEAD"), (":path", "/é"), *HEADERS[2:]])
    client.request(5, [(":method", "HEAD"), *HEADERS[1:]])
    client.flush()
    events = client.events(ended(1, 3, 5))
    assert [e.stream_id for e in events if isinstance(e, h2.events.StreamReset)] == [1]
    answers = {e.stream_id: dict(e.headers) for e in events if isinstance(e, h2.events.ResponseReceived)}
    assert {stream: answer[b":status"] for stream, answer in answers.items()} == {
        1: b"400",
        3: b"400",
        5: b"200",
    }


def test_a_reset_stops_the_work(server: Secure, client: Client) -> None:
    before = finished_whole(server)
    for stream in range(1, 41, 2):
        client.request(stream, post("/v1/completions"), STREAM)
        client.flush()
        time.sleep(0.002 * (stream % 5))  # at different moments
        client.h2.reset_stream(stream)
        client.flush()
    for name in ("num_requests_running", "num_requests_waiting"):
        server.process.wait_until(lambda name=name: server.metric(name) == 0, timeout=3)
    assert finished_whole(server) == before


@pytest.mark.parametrize("path", ["/health", "/v1/completions"])
def test_rapid_reset(server: Secure, client: Client, path: str) -> None:
    before = finished_whole(server)
    headers, body = (HEADERS, None) if path == "/health" else (post(path), STREAM)
    with contextlib.suppress(OSError, h2.exceptions.ProtocolError):  # closed, or no window left
        for stream in range(1, 20_000, 2):
            client.request(stream, headers, body)
            client.h2.reset_stream(stream)
            client.flush()
    assert client.last_words() == ErrorCodes.ENHANCE_YOUR_CALM
    assert finished_whole(server) == before


def test_made_you_reset(client: Client) -> None:
    with contextlib.suppress(OSError, h2.exceptions.FlowControlError):  # of bodies that nobody read yet
        for stream in range(1, 20_000, 2):
            client.request(stream, post("/v1/completions"), STREAM)
            client.flush(WindowUpdateFrame(stream, window_increment=2**31 - 1).serialize())
    assert client.last_words() is not None


@pytest.mark.parametrize("size", [0, 4000])
def test_continuation_flood(client: Client, size: int) -> None:
    with contextlib.suppress(OSError):
        client.sock.sendall(HeadersFrame(1, data=b"\x82").serialize())
        for _ in range(20_000):
            client.sock.sendall(ContinuationFrame(1, data=b"\x00\x01a\x01b" * (size // 5)).serialize())
    assert client.last_words() == ErrorCodes.PROTOCOL_ERROR


def test_hpack_bomb(client: Client) -> None:
    encoder = hpack.Encoder()
    block = encoder.encode([*HEADERS, ("x", "a" * 4000)]) + encoder.encode([("x", "a" * 4000)] * 4000)
    frame = HeadersFrame(1, data=block, flags=["END_HEADERS", "END_STREAM"])
    client.sock.sendall(frame.serialize())
    assert client.last_words() == ErrorCodes.ENHANCE_YOUR_CALM


def test_a_window_that_stays_closed(server: Secure, client: Client) -> None:
    before = finished_whole(server)
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    streams = range(1, 41, 2)
    for stream in streams:
        client.request(stream, post("/v1/completions"), STREAM)
    client.flush()
    events = client.events(ended(*streams), seconds=20)
    resets = [event for event in events if isinstance(event, h2.events.StreamReset)]
    assert {event.stream_id for event in resets} == set(streams)
    assert finished_whole(server) == before, "the reader does not hold up the writer"
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 65535})
    client.request(101, HEADERS)
    client.flush()
    assert client.events(ended(101))


def send_pings_until_cut(sock: socket.socket, start: bytes = b"") -> None:
    """Send frames that want answers, and read none of them."""
    sock.settimeout(20)
    pings = PingFrame(0, opaque_data=b"12345678").serialize() * 1_000_000
    with pytest.raises((ConnectionError, ssl.SSLError)):  # not TimeoutError
        sock.sendall(start + pings)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.usefixtures("watched")
def test_the_protocols_own_words_unread(server: Secure, busy: bool) -> None:
    client = Client(server, buffer=4096)
    if busy:
        client.request(1, post("/v1/completions"), STREAM)
        client.flush()
    send_pings_until_cut(client.sock)
    client.sock.close()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("keep_alive_timeout", [0.2, 20])
def test_the_protocols_own_words_unread_without_tls(busy: bool, keep_alive_timeout: float) -> None:
    """Whichever limit comes first."""
    start = request_bytes("POST", "/v1/completions", STREAM) if busy else b""
    start += b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SettingsFrame(0).serialize()
    with server_process(h2c="true", write_timeout=0.5, keep_alive_timeout=keep_alive_timeout) as process:
        with connect(process, 4096) as sock:
            send_pings_until_cut(sock, start)
        process.wait_idle()


def test_half_handshakes_are_counted_and_hurried(server: Secure) -> None:
    tls = {"ssl_certfile": server.certificate, "ssl_keyfile": server.certificate.with_name("key.pem")}
    with server_process(ready=False, max_connections=5, keep_alive_timeout=3, **tls) as process:
        other = Secure(process, server.certificate)
        process.wait_until(lambda: b" 200" in other.get("/ready")[:20])
        with contextlib.ExitStack() as stack:
            socks = [stack.enter_context(process.connect(timeout=5)) for _ in range(5)]
            for sock in socks[::2]:
                sock.sendall(b"\x16\x03\x01\x02")
            with pytest.raises((ConnectionError, ssl.SSLError)):
                other.get("/health")
            assert [read_to_end(sock) for sock in socks] == [b""] * 5
            assert b" 200" in other.get("/health")[:20]


def test_what_is_not_tls_is_turned_away(server: Secure) -> None:
    with server.process.connect(timeout=5) as sock:
        sock.sendall(request_bytes("GET", "/health"))
        assert b"HTTP" not in read_to_end(sock)
    assert b" 200" in server.get("/health")[:20]


@pytest.mark.parametrize(
    "frame",
    [
        lambda i: PingFrame(0, opaque_data=b"12345678"),
        lambda i: PriorityFrame(2 * i + 1, depends_on=0, stream_weight=1, exclusive=True),
        lambda i: WindowUpdateFrame(0, window_increment=1),
    ],
    ids=["ping", "priority", "window"],
)
def test_floods_of_small_frames(client: Client, frame: Callable[[int], PingFrame]) -> None:
    with contextlib.suppress(OSError):
        for batch in range(100):
            client.sock.sendall(b"".join(frame(100 * batch + i).serialize() for i in range(100)))
