"""What comes over the wire that is not quite HTTP, or too much of it. The server is a real process."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.process import FAKE, ServerProcess, read_to_end, server_process

HOST = b"Host: localhost"
JSON = b"Content-Type: application/json"
CHUNKED = b"Transfer-Encoding: chunked"
BODY = b'{"prompt":"a"}'
CHUNK = b"e\r\n" + BODY + b"\r\n"


def get(
    target: bytes = b"/health", *headers: bytes, host: bytes | None = HOST, version: bytes = b"1.1"
) -> bytes:
    lines = [b"GET " + target + b" HTTP/" + version, *([] if host is None else [host]), *headers]
    return b"\r\n".join([*lines, b"", b""])


def line(first: bytes) -> bytes:
    return first + b"\r\n" + HOST + b"\r\n\r\n"


def post(*headers: bytes, body: bytes = BODY) -> bytes:
    return b"\r\n".join([b"POST /tokenize HTTP/1.1", HOST, JSON, *headers, b"", body])


def length(value: bytes) -> bytes:
    return b"Content-Length: " + value


VECTORS: dict[str, tuple[bytes, list[int]]] = {
    "plain": (get(), [200]),
    "two at once": (get() + get(), [200, 200]),
    "http/1.0": (get(version=b"1.0"), [200]),
    "lone line feeds": (b"GET /health HTTP/1.1\nHost: localhost\n\n", [200]),
    "post": (post(length(b"14")), [200]),
    "chunks": (post(CHUNKED, body=CHUNK + b"0\r\n\r\n"), [200]),
    "chunk extension": (post(CHUNKED, body=b"e;a=b\r\n" + BODY + b"\r\n0\r\n\r\n"), [200]),
    "expects to be told to go on": (post(length(b"14"), b"Expect: 100-continue"), [100, 200]),
    "offers http/2": (get(b"/health", b"Connection: Upgrade", b"Upgrade: h2c"), [200]),
    "body of a get": (get(b"/health", length(b"5")) + b"hello", [200]),
    # Two ways to frame a body.
    "length and chunks": (post(length(b"14"), CHUNKED, body=b"0\r\n\r\n"), [400]),
    "chunks and length": (post(CHUNKED, length(b"14"), body=b"0\r\n\r\n"), [400]),
    "smuggled request": (post(length(b"5"), CHUNKED, body=b"0\r\n\r\n" + get()), [400]),
    "smuggled by length": (post(length(b"41"), CHUNKED, body=b"0\r\n\r\n" + get()), [400]),
    "two lengths": (post(length(b"14"), length(b"13")), [400]),
    "list of lengths": (post(length(b"14, 13")), [400]),
    "negative length": (post(length(b"-14")), [400]),
    "signed length": (post(length(b"+14")), [400]),
    "hexadecimal length": (post(length(b"0xe")), [400]),
    "length with underscore": (post(length(b"1_4")), [400]),
    "word for a length": (post(length(b"x")), [400]),
    "empty length": (post(length(b"")), [400]),
    "endless length": (post(length(b"9" * 30)), [400]),
    "unknown coding": (post(b"Transfer-Encoding: gzip, chunked"), [501]),
    "identity coding": (post(b"Transfer-Encoding: identity"), [501]),
    "misspelt coding": (post(b"Transfer-Encoding: xchunked"), [501]),
    "two codings": (post(CHUNKED, b"Transfer-Encoding: identity"), [501]),
    "chunked twice": (post(b"Transfer-Encoding: chunked, chunked"), [501]),
    "space before the colon": (post(b"Transfer-Encoding : chunked"), [400]),
    "vertical tab": (post(b"Transfer-Encoding: \x0bchunked"), [400]),
    "chunk size that is none": (post(CHUNKED, body=b"zz\r\n{}\r\n0\r\n\r\n"), [400]),
    "negative chunk": (post(CHUNKED, body=b"-1\r\n{}\r\n0\r\n\r\n"), [400]),
    "0x chunk": (post(CHUNKED, body=b"0xe\r\n" + BODY + b"\r\n0\r\n\r\n"), [400]),
    "endless chunk size": (post(CHUNKED, body=b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n"), [400]),
    "chunk without an end": (post(CHUNKED, body=b"e\r\n" + BODY + b"X0\r\n\r\n"), [400]),
    "bad trailer": (post(CHUNKED, body=CHUNK + b"0\r\nbad trailer\r\n\r\n"), [400]),
    "long chunk extension": (post(CHUNKED, body=b"e;" + b"a" * 70_000 + b"\r\n"), [431]),
    # Hosts.
    "two hosts": (get(b"/health", HOST), [400]),
    "no host": (get(host=None), [400]),
    "no host, http/1.0": (get(host=None, version=b"1.0"), [400]),
    "unknown host": (get(host=b"Host: evil.example"), [421]),
    "space in host": (get(host=b"Host: local host"), [400]),
    "half an address": (get(host=b"Host: [::1"), [400]),
    "empty host": (get(host=b"Host:"), [400]),
    "origin of half an address": (get(b"/health", b"Origin: http://[::1"), [403]),
    # Headers.
    "space in a name": (get(b"/health", b"X Y: a"), [400]),
    "no colon": (get(b"/health", b"XY"), [400]),
    "no name": (get(b"/health", b": a"), [400]),
    "folded first line": (b"GET /health HTTP/1.1\r\n X: a\r\nHost: localhost\r\n\r\n", [400]),
    "null": (get(b"/health", b"X: a\x00b"), [400]),
    "lone carriage return": (get(b"/health", b"X: a\rb"), [400]),
    "long header": (get(b"/health", b"X: " + b"a" * 20_000), [431]),
    "very long header": (get(b"/health", b"X: " + b"a" * 200_000), [431]),
    "101 headers": (get(b"/health", *[b"X%d: a" % i for i in range(100)]), [431]),
    "10,000 headers": (get(b"/health", *[b"X%d: a" % i for i in range(10_000)]), [431]),
    "two origins": (get(b"/health", b"Origin: http://evil.example", b"Origin: http://localhost"), [400]),
    "two keys": (get(b"/health", b"Authorization: Bearer a", b"Authorization: Bearer b"), [400]),
    "two types": (post(JSON, b"Content-Type: text/plain", length(b"2"), body=b"{}"), [400]),
    # First lines.
    "odd method": (line(b"G@T /health HTTP/1.1"), [400]),
    "long method": (line(b"A" * 1000 + b" /health HTTP/1.1"), [405]),
    "put": (line(b"PUT /health HTTP/1.1"), [405]),
    "trace": (line(b"TRACE /health HTTP/1.1"), [405]),
    "connect": (line(b"CONNECT localhost:80 HTTP/1.1"), [404]),
    "absolute target": (get(b"http://evil.example/health"), [404]),
    "star": (line(b"OPTIONS * HTTP/1.1"), [404]),
    "raw bytes in the path": (get("/é".encode()), [400]),
    "null in the path": (get(b"/\x00"), [400]),
    "space in the path": (get(b"/a b"), [400]),
    "escaped null": (get(b"/%00"), [404]),
    "escaped bytes that are no text": (get(b"/%ff%fe"), [404]),
    "escaped line end": (get(b"/a%0d%0aX:y"), [404]),
    "half an escape": (get(b"/%zz"), [404]),
    "way up": (get(b"/static/%2e%2e/app.py"), [404]),
    "long path": (get(b"/" + b"a" * 9000), [414]),
    "long query": (get(b"/health?" + b"a" * 9000), [414]),
    "very long path": (get(b"/" + b"a" * 200_000), [431]),
    "http/2.0 in the words of http/1": (get(version=b"2.0"), [505]),
    "http/3": (get(version=b"3"), [400]),
    "http/0.9": (b"GET /health\r\n\r\n", [400]),
    "http/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 9, [505]),
    "tls": (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03" + b"\x00" * 60 + b"\r\n\r\n", [400]),
    "noise": (b"\x00\x01\x02\x03\r\n\r\n", [400]),
    "empty lines": (b"\r\n\r\n", [400]),
    "websocket": (
        get(
            b"/",
            b"Connection: Upgrade",
            b"Upgrade: websocket",
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        [403],
    ),
    "half a websocket": (get(b"/", b"Connection: Upgrade", b"Upgrade: WebSocket"), [403]),
    "websocket by HEAD": (
        b"HEAD / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        [403],
    ),
    "noise after HEAD": (
        b"HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n\x00\r\n\r\n",
        [200, 400],
    ),
    "bad chunks by HEAD": (
        b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        [400],
    ),
    # Bodies.
    "large body": (post(length(b"99999999"), body=b"x"), [413]),
    "large chunks": (post(CHUNKED, body=b"200000\r\n" + b"x" * 0x200000 + b"\r\n0\r\n\r\n"), [413]),
    "no type": (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", [415]),
    "no body": (post(body=b""), [400]),
    "body that does not come": (post(length(b"100")), [408]),
    "chunks that do not come": (post(CHUNKED, body=CHUNK), [408]),
    "half a head": (b"GET /health HTTP/1.1\r\nHost: loc", []),
    "nothing": (b"", []),
}


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with server_process(keep_alive_timeout=0.5, body_timeout=0.5) as process:
        yield process


def exchange(server: ServerProcess, data: bytes) -> bytes:
    """Send, and read until the server closes: it always does, soon."""
    with server.connect(timeout=10) as sock:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has heard enough
            sock.sendall(data)
        return read_to_end(sock)


def check_errors(reply: bytes) -> None:
    """Whatever is refused, by whichever layer, is refused in the same form and with an id."""
    for head, body in re.findall(
        rb"HTTP/1\.1 [45].*?\r\n(.*?)\r\n\r\n(.*?)(?=HTTP/1\.1 \d|\Z)", reply, re.DOTALL
    ):
        headers = dict(re.findall(r"^([a-z-]+): (.*?)\r?$", head.decode().lower(), re.MULTILINE))
        assert re.fullmatch("[0-9a-f]{32}", headers["x-request-id"])
        assert headers["content-type"] == "application/json"
        assert int(headers["content-length"]) == len(body)
        assert headers["x-content-type-options"] == "nosniff"
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["code"]


def test_vectors(server: ServerProcess) -> None:
    assert len(VECTORS) >= 60
    steps = server.metric("iteration_tokens_total_count")
    with ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda vector: exchange(server, vector[0]), VECTORS.values()))
    for (name, (_, expected)), reply in zip(VECTORS.items(), replies, strict=True):
        statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", reply)]
        if name.startswith("large") and not reply:
            continue  # the kernel may drop an answer to a client that is still sending
        assert statuses == expected, (name, reply[-300:])
        if name.endswith("by HEAD"):
            assert reply.endswith(b"\r\n\r\n"), name
        else:
            check_errors(reply)
    assert server.metric("iteration_tokens_total_count") == steps
    assert server.get("/ready").status == 200
    assert not [text for text in server.lines if "Traceback" in text or "ERROR" in text], server.lines[-30:]


def test_an_answer_given_up_on_does_not_reuse_its_connection(server: ServerProcess) -> None:
    reply = exchange(server, post(length(b"5"), CHUNKED, body=b"0\r\n\r\n" + get() * 3))
    assert reply.count(b"HTTP/1.1") == 1
    assert b"connection: close" in reply.lower()


def test_half_heads_do_not_keep_others_out(server: ServerProcess) -> None:
    socks = [server.connect() for _ in range(200)]
    try:
        for sock in socks:
            sock.sendall(b"GET /health HTTP/1.1\r\n")
        assert server.get("/health").status == 200
        for sock in socks:
            assert read_to_end(sock) == b""
    finally:
        for sock in socks:
            sock.close()


def test_too_many_connections_are_turned_away() -> None:
    with server_process(max_connections=3, keep_alive_timeout=30) as server:
        server.wait_until(lambda: server.get("/health").status == 200)
        socks = [server.connect() for _ in range(6)]
        replies = []
        for sock in socks[3:]:
            replies.append(read_to_end(sock))
        assert all(b"503" in reply and b"too_many_connections" in reply for reply in replies)
        for reply in replies:
            check_errors(reply)
        for sock in socks:
            sock.close()
        server.wait_until(lambda: server.get("/health").status == 200)


def limited(kind: str, files: int) -> tuple[str, ...]:
    return ("bash", "-c", f"ulimit {kind} -n {files}; exec {' '.join(FAKE)}")


def half_heads(server: ServerProcess, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    socks = [stack.enter_context(server.connect()) for _ in range(count)]
    for sock in socks:
        sock.sendall(b"GET /health HTTP/1.1\r\n")
    return socks


def test_a_low_limit_of_open_files_is_raised() -> None:
    with server_process(*limited("-S", 40), keep_alive_timeout=30) as server, contextlib.ExitStack() as stack:
        for sock in half_heads(server, stack, 100):
            sock.sendall(HOST + b"\r\n\r\n")
            assert b" 200 " in sock.recv(100)


def test_without_file_descriptors_connections_wait() -> None:
    with server_process(*limited("-SH", 40), keep_alive_timeout=1) as server:
        with contextlib.ExitStack() as stack:
            half_heads(server, stack, 100)
            server.wait_until(lambda: any("file descriptors" in line for line in server.lines))
        assert server.get("/health").status == 200
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200
        assert server.get("/").status == 200
        assert sum("file descriptors" in line for line in server.lines) <= 2
        assert not [line for line in server.lines if "Traceback" in line]
