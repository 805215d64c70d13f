"""A server as a process of its own, and plain sockets to talk to it."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAKE = (sys.executable, "-m", "tests.server.fake_server")
LISTENING = re.compile(r"(?:listening|Running) on (https?)://([0-9.]+):(\d+)")


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    port: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout: float = 20) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Response:
        with self.connect() as sock:
            sock.sendall(request_bytes(method, path, body, **headers))
            return read_response(sock)

    def get(self, path: str, **headers: str) -> Response:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Response:
        return self.request("POST", path, body, **headers)

    def wait_ready(self, timeout: float = 60) -> None:
        self.wait_until(lambda: self.get("/ready").status == 200, timeout)

    def wait_until(self, condition: Any, timeout: float = 20) -> None:
        end = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, "\n".join(self.lines)
            assert time.monotonic() < end, "\n".join(self.lines[-20:])
            time.sleep(0.01)

    def processor_seconds(self) -> float:
        """Return how long the process has computed, all its threads together."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        text = self.get("/metrics").body.decode()
        found = re.findall(rf"^tinyllm:{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        assert found, name
        return sum(map(float, found))

    def wait_idle(self) -> None:
        names = ("num_requests_running", "num_requests_waiting", "num_requests_stalled")
        self.wait_until(lambda: not any(self.metric(name) for name in names))

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, timeout: float = 30) -> int:
        return self.process.wait(timeout)


def request_bytes(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    data = b""
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin1") + data


def read_response(sock: socket.socket) -> Response:
    """Read one response, also one in chunks; fails if the server closes before its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += receive(sock)
    head, _, rest = data.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(status_line.split()[1])
    if status < 200:
        return Response(status, headers, rest)
    if headers.get("transfer-encoding") == "chunked":
        while not rest.endswith(b"0\r\n\r\n"):
            rest += receive(sock)
        return Response(status, headers, dechunked(rest))
    while len(rest) < int(headers.get("content-length", 0)):
        rest += receive(sock)
    return Response(status, headers, rest)


def receive(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise EOFError("the server closed the connection")
    return data


def dechunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body, data = body + data[:length], data[length + 2 :]
    return body


def read_to_end(sock: socket.socket) -> bytes:
    """Read until the server closes."""
    data = b""
    try:
        while part := sock.recv(65536):
            data += part
    except ConnectionResetError:
        pass
    return data


@contextmanager
def server_process(*command: str, ready: bool = True, **options: object) -> Iterator[ServerProcess]:
    """Start a server on a free port; ``options`` become its ``TINYLLM_*`` variables."""
    variables = {f"TINYLLM_{name.upper()}": str(value) for name, value in options.items()}
    environment = {**os.environ, "TINYLLM_PORT": "0", "PYTHONUNBUFFERED": "1", **variables}
    process = subprocess.Popen(
        command or FAKE, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    server = ServerProcess(process)
    found: queue.Queue[int] = queue.Queue()
    reader = threading.Thread(target=_read_lines, args=(process, server.lines, found), daemon=True)
    reader.start()
    try:
        server.port = found.get(timeout=60)
        assert server.port, "\n".join(server.lines)
        if ready:
            server.wait_ready()
        yield server
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def _read_lines(process: subprocess.Popen[str], lines: list[str], found: queue.Queue[int]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(line.rstrip())
        if match := LISTENING.search(line):
            found.put(int(match[3]))
    found.put(0)
