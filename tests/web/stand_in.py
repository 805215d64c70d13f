"""A scripted server for the page: says what a test tells it to say, with the faults that a test wants."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from quart import Quart, Response, request

from tinyllm.server.page import POLICY

__all__ = ["Plan", "StandIn"]

WEB = Path(__file__).parent.parent.parent / "web"
KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
PROPS = {
    "model": "stand-in-1B",
    "version": "0.1.0",
    "architecture": "LlamaForCausalLM",
    "dtype": "float32",
    "device": "cpu",
    "max_model_len": 8192,
    "num_kv_blocks": 512,
    "block_size": 16,
    "api_keys": False,
    "sampling_defaults": {
        "temperature": 0.2,
        "top_p": 0.9,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    },
}


@dataclass
class Plan:
    """What the next answer is."""

    pieces: Iterable[str] = ("Hello", " there", ".")
    reasoning: Iterable[str] = ()
    rate: float | None = None
    """Pieces a second; None is as fast as it goes."""
    status: int = 200
    code: str | None = None
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Break the connection after this many pieces."""
    fail_after: int | None = None
    """Send an error inside the stream after this many pieces."""
    gate: threading.Event | None = None
    """Wait for this before each piece after the first."""
    finish: str = "stop"
    delay: float = 0.0
    """Seconds before the first piece."""
    raw: Sequence[bytes] | None = None
    """What is sent instead, as it is; ``cut_after`` then says that the connection breaks after it."""
    content_type: str = "text/event-stream; charset=utf-8"


def envelope(message: str, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "x", "param": None, "code": code}}


class StandIn:
    """Runs on a thread of its own. ``plan`` gives the plan of each request from its body."""

    def __init__(self) -> None:
        self.plan: Callable[[dict[str, Any]], Plan] = lambda body: Plan()
        self.ready: tuple[int, str | None] = (200, None)
        self.key: str | None = None
        self.replies: dict[str, tuple[int, str, bytes]] = {}
        """By path: a status, a content type and a body that are sent instead."""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self.generated = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def reset(self) -> None:
        self.plan = lambda body: Plan()
        self.ready, self.key = (200, None), None
        self.replies = {}
        for kept in (self.bodies, self.headers, self.cancelled, self.ended):
            kept.clear()

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(20)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(20)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        import socket

        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        config = Config()
        config.bind = [f"fd://{listening.detach()}"]
        config.graceful_timeout = 0.5
        config.accesslog = config.errorlog = None
        self._loop.call_later(0.2, self._started.set)
        await serve(self._app(), config, shutdown_trigger=self._stop.wait)

    def _app(self) -> Quart:
        app = Quart("stand-in", static_folder=None)
        app.config["RESPONSE_TIMEOUT"] = None
        app.before_request(self._instead)
        app.add_url_rule("/", view_func=self._index)
        app.add_url_rule("/static/<path:name>", view_func=self._static)
        app.add_url_rule("/ready", view_func=self._ready)
        app.add_url_rule("/props", view_func=self._props)
        app.add_url_rule("/metrics", view_func=self._metrics)
        app.add_url_rule("/v1/chat/completions", view_func=self._chat, methods=["POST"])
        app.add_url_rule("/v1/chat/completions/render", view_func=self._render, methods=["POST"])
        app.add_url_rule("/v1/requests/<name>/cancel", view_func=self._cancel, methods=["POST"])
        return app

    async def _instead(self) -> Response | None:
        if request.path not in self.replies:
            return None
        status, content_type, body = self.replies[request.path]
        return Response(body, status=status, content_type=content_type)

    async def _index(self) -> Response:
        return await self._static("index.html")

    async def _static(self, name: str) -> Response:
        path = WEB / name
        response = Response(path.read_bytes(), content_type=f"{KINDS[path.suffix]}; charset=utf-8")
        response.headers["content-security-policy"] = POLICY
        response.headers["cache-control"] = "no-cache"
        return response

    def _refused(self) -> Response | None:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return _json(envelope("an API key is needed", "invalid_api_key"), 401)
        return None

    async def _ready(self) -> Response:
        status, code = self.ready
        return _json({"status": "ready"} if status == 200 else envelope("not ready", code), status)

    async def _props(self) -> Response:
        return self._refused() or _json(PROPS)

    async def _metrics(self) -> Response:
        self.generated += 37
        values = {
            "num_requests_running": 2,
            "num_requests_waiting": 1,
            "kv_cache_usage_perc": 0.31,
            "generation_tokens_total": self.generated,
            "prefix_cache_queries_total": self.generated * 2,
            "prefix_cache_hits_total": self.generated,
        }
        text = "".join(
            f'tinyllm:{name}{{model_name="x}} y",engine="0"}} {value}\n' for name, value in values.items()
        )
        return self._refused() or Response(text, content_type="text/plain; version=0.0.4")

    async def _cancel(self, name: str) -> Response:
        self.cancelled.append(name)
        return _json({"cancelled": True})

    async def _render(self) -> Response:
        body = await request.get_json()
        turns = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in body["messages"])
        prompt = turns + "<|im_start|>assistant\n"
        parts = re.findall(r"<\|.*?\|>|.", prompt, re.DOTALL)
        tokens = [{"text": part, "special": part.startswith("<|")} for part in parts]
        facts = {"prompt": prompt, "count": len(tokens), "max_model_len": 8192}
        return self._refused() or _json(facts | {"tokens": tokens})

    async def _chat(self) -> Response:
        if (refused := self._refused()) is not None:
            return refused
        body = await request.get_json()
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        plan = self.plan(body)
        if plan.status != 200:
            return _json(envelope(plan.message, plan.code), plan.status, plan.headers)
        if plan.raw is not None:
            return Response(_raw(plan), content_type=plan.content_type)
        if not body.get("stream"):
            return _json(_whole(body, plan))
        response = Response(self._events(body, plan), content_type="text/event-stream; charset=utf-8")
        response.timeout = None
        return response

    async def _events(self, body: dict[str, Any], plan: Plan) -> AsyncIterator[bytes]:
        number = len(self.bodies)
        started, count = time.monotonic(), 0
        await asyncio.sleep(plan.delay)
        try:
            thoughts = [("reasoning_content", text) for text in plan.reasoning]
            for kind, text in [*thoughts, *(("content", text) for text in plan.pieces)]:
                if count == plan.fail_after:
                    yield _event(envelope("a fault", "request_failed"))
                    yield b"data: [DONE]\n\n"
                    return
                if plan.gate is not None and count:
                    await asyncio.to_thread(plan.gate.wait, 30)
                if plan.rate is not None:
                    await asyncio.sleep(max(0.0, started + count / plan.rate - time.monotonic()))
                if count == plan.cut_after:  # what came together with the break, the browser may not give out
                    raise ConnectionError("cut")
                count += 1
                yield _event(_chunk(body, count, {kind: text}, None, text))
            yield _event(_chunk(body, count, {}, plan.finish, None))
            yield _event({"choices": [], "usage": _usage(count)})
            yield b"data: [DONE]\n\n"
        finally:
            self.ended.append(f"{number}:{count}")


async def _raw(plan: Plan) -> AsyncIterator[bytes]:
    for piece in plan.raw or ():
        yield piece
    if plan.cut_after is not None:
        raise ConnectionError("cut")


def _event(value: Any) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _usage(count: int) -> dict[str, Any]:
    return {"prompt_tokens": 20, "completion_tokens": count, "total_tokens": 20 + count}


def _logprobs(text: str) -> dict[str, Any]:
    logprob = -0.02 - (len(text) * 7 % 5) * 0.6
    others = [
        {"token": text, "logprob": logprob},
        {"token": " other", "logprob": -3.1},
        {"token": "\n", "logprob": -4.0},
    ]
    return {
        "content": [{"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": others}]
    }


def _chunk(
    body: dict[str, Any], count: int, delta: dict[str, str], finish: str | None, text: str | None
) -> dict[str, Any]:
    if count == 1:
        delta = {"role": "assistant", **delta}
    logprobs = _logprobs(text) if text and body.get("logprobs") else None
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "stand-in-1B",
        "choices": [choice],
        "usage": _usage(count),
    }


def _whole(body: dict[str, Any], plan: Plan) -> dict[str, Any]:
    pieces = list(plan.pieces)
    message = {"role": "assistant", "content": "".join(pieces)}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": plan.finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "stand-in-1B",
        "choices": [choice],
        "usage": _usage(len(pieces)),
    }


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    response = Response(json.dumps(body), status=status, content_type="application/json")
    response.headers.update(headers or {})
    return response
