"""A server on a real socket that answers as the test says, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tinyllm.bench.serve.client import Target

MODEL = "scripted"


class Reply:
    """One answer being written."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", headers: Mapping[str, object] | None = None
    ) -> None:
        lines = [f"HTTP/1.1 {status} Status", f"Content-Type: {kind}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        await self.raw(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def chunk(self, text: str = "", finish: str | None = None, **fields: Any) -> None:
        await self.event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **fields})

    async def delta(self, finish: str | None = None, **delta: Any) -> None:
        await self.event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})

    async def usage(self, prompt: int, output: int, cached: int | None = None) -> None:
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output}
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        await self.event({"choices": [], "usage": usage})

    async def event(self, event: object) -> None:
        await self.raw(b"data: " + json.dumps(event).encode() + b"\n\n")

    async def done(self) -> None:
        await self.raw(b"data: [DONE]\n\n")

    async def json(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        await self.head(status, "application/json", {"Content-Length": len(data)})
        await self.raw(data)

    def reset(self) -> None:
        """Close without a goodbye (RST)."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


async def whole(reply: Reply, words: list[str], prompt_tokens: int = 3) -> None:
    """Answer in full."""
    await reply.head()
    for word in words:
        await reply.chunk(word)
    await reply.chunk(finish="length")
    await reply.usage(prompt_tokens, len(words), 0)
    await reply.done()


Script = Callable[[dict[str, Any], Reply], Awaitable[None]]


@dataclass
class Scripted:
    """What came to the server; ``script`` answers requests, ``pages`` everything else."""

    script: Script
    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    pages: dict[str, Any] = field(default_factory=lambda: {"/v1/models": {"data": [{"id": MODEL}]}})
    metrics: str | None = None
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def target(self, **fields: Any) -> Target:
        options: dict[str, Any] = {"model": MODEL, "timeout": 20.0, **fields}
        return Target(self.url, **options)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        _method, path, _ = head[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])
        }
        data = await reader.readexactly(int(headers.get("content-length", 0)))
        reply = Reply(writer)
        self.asked.append(path)
        if path in ("/v1/completions", "/v1/chat/completions"):
            self.bodies.append(json.loads(data))
            self.headers.append(headers)
            await self.script(self.bodies[-1], reply)
        elif path == "/metrics" and self.metrics is not None:
            await reply.head(200, "text/plain", {"Content-Length": len(self.metrics)})
            await reply.raw(self.metrics.encode())
        elif path in self.pages:
            page = self.pages[path]
            await reply.json(page(json.loads(data)) if callable(page) else page)
        else:
            await reply.json({"error": {"message": "not found"}}, 404)


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """Serve until the block ends."""
    fake = Scripted(script)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await fake.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    fake.port = server.sockets[0].getsockname()[1]
    async with server:
        yield fake
