"""The clients of benches/http.py, as a process of their own: plain sockets, and no more work than they must.

Jobs come as lines of JSON on standard input; each is answered with a line of JSON. A client that is late
itself would take its own lag for the server's, so every answer says how late this process's event loop was.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from typing import Any

from benches.streaming import percentile, watch_loop

ENDED = b"data: [DONE]\n\n"
CLOSE = "Connection: close\r\n"


def request_bytes(method: str, path: str, body: dict[str, Any] | None = None, extra: str = CLOSE) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    kind = "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{extra}{kind}\r\n".encode() + data


class Exchange(asyncio.Protocol):
    """Sends one request on a connection of its own, and keeps what comes until the server closes."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.first: float | None = None
        self.data = bytearray()
        self.seconds = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.first is None:
            self.first = time.perf_counter()
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.seconds = time.perf_counter() - self.started
        self.done.set_result(None)

    @property
    def status(self) -> int:
        return int(self.data[9:12]) if len(self.data) > 12 else 0


async def exchange(port: int, request: bytes) -> Exchange:
    loop = asyncio.get_running_loop()
    try:
        _, protocol = await loop.create_connection(lambda: Exchange(request), "127.0.0.1", port)
    except OSError:  # refused: counts as an answer without a status
        return Exchange(request)
    await protocol.done
    return protocol


async def streams(port: int, body: dict[str, Any], count: int) -> dict[str, Any]:
    """Read so many streams at once, to their ends."""
    started = time.perf_counter()
    request = request_bytes("POST", "/v1/completions", {**body, "stream": True})
    ends = await asyncio.gather(*(exchange(port, request) for _ in range(count)))
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "statuses": Counter(end.status for end in ends),
        "whole": sum(end.data.count(ENDED) == 1 and b'"finish_reason":"length"' in end.data for end in ends),
        "told": sum(end.data.count(ENDED) == 1 and b'"error":{' in end.data for end in ends),
        "bytes": sum(len(end.data) for end in ends),
        "first_seconds": [end.first - end.started for end in ends if end.first is not None],
    }


async def overload(port: int, body: dict[str, Any], rate: float, seconds: float) -> dict[str, Any]:
    """Send requests at a steady rate, whatever comes of them."""
    request = request_bytes("POST", "/v1/completions", body)
    tasks: list[asyncio.Task[Exchange]] = []
    started = time.perf_counter()
    for number in range(int(rate * seconds)):
        if (wait := started + number / rate - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(exchange(port, request)))
        if number % 16 == 0:
            await asyncio.sleep(0)
    offered = time.perf_counter() - started
    ends = await asyncio.gather(*tasks)
    refused = [end.seconds for end in ends if end.status == 429]
    return {
        "sent": len(ends),
        "sent_per_second": len(ends) / offered,
        "statuses": Counter(end.status for end in ends),
        "without_retry_after": sum(end.status == 429 and b"retry-after: " not in end.data for end in ends),
        "refused_p50_ms": percentile(refused, 0.5) * 1e3 if refused else None,
        "refused_p99_ms": percentile(refused, 0.99) * 1e3 if refused else None,
    }


async def health(port: int, seconds: float, interval: float, beside: dict[str, Any] | None) -> dict[str, Any]:
    """Ask for /health over and over on one connection, while a large chat is made a prompt over and over."""
    stop = time.perf_counter() + seconds
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    times: list[float] = []
    renders: list[Exchange] = []

    async def render() -> None:
        assert beside is not None
        request = request_bytes("POST", "/v1/chat/completions/render", beside)
        while time.perf_counter() < stop:
            renders.append(await exchange(port, request))

    task = asyncio.create_task(render()) if beside else None
    while time.perf_counter() < stop:
        started = time.perf_counter()
        writer.write(request_bytes("GET", "/health", extra=""))
        await reader.readuntil(b"}")
        times.append(time.perf_counter() - started)
        await asyncio.sleep(interval)
    writer.close()
    if task is not None:
        await task
    return {
        "probes": len(times),
        "p50_ms": percentile(times, 0.5) * 1e3,
        "p99_ms": percentile(times, 0.99) * 1e3,
        "max_ms": max(times) * 1e3,
        "renders": Counter(end.status for end in renders),
        "render_p50_seconds": percentile([end.seconds for end in renders], 0.5) if renders else None,
    }


JOBS = {"streams": streams, "overload": overload, "health": health}


async def measured(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """Do a job; say also what it cost here."""
    lags: list[float] = []
    watcher = asyncio.create_task(watch_loop(lags))
    before = resource.getrusage(resource.RUSAGE_SELF)
    result: dict[str, Any] = await JOBS[kind](**options)  # type: ignore[operator]
    after = resource.getrusage(resource.RUSAGE_SELF)
    watcher.cancel()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result | {"client_cpu_seconds": cpu, "client_lag_p99_ms": percentile([*lags, 0.0], 0.99) * 1e3}


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(asyncio.run(measured(job.pop("kind"), job))), flush=True)


if __name__ == "__main__":
    main()
