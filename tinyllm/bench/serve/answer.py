"""`Answer`: the chunks of one streamed answer, as they come in.

The client shares its cores with the server it measures, so per chunk there is one split, one `json.loads`
and a few dictionary look-ups.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from tinyllm.bench.serve.events import DONE, EventError, EventParser
from tinyllm.bench.serve.meter import Clock, Meter
from tinyllm.bench.serve.records import RequestRecord

__all__ = ["Answer", "fail", "message_of"]

MESSAGE_LENGTH: Final = 300


class Answer:
    """An answer as it comes in: puts into its record when each chunk came, and what it said."""

    def __init__(self, record: RequestRecord, clock: Clock, meter: Meter) -> None:
        self.text: list[str] = []
        self._record, self._clock, self._meter = record, clock, meter
        self._parser = EventParser()
        self._first_chunk: float | None = None
        self._done = False

    def receive(self, received: bytes) -> None:
        """Take what came. Raises `EventError` or another `ValueError` if it is no stream of chunks."""
        now = self._clock.now()
        for data in self._parser.feed(received):
            if data == DONE:
                self._done = True
            else:
                self._chunk(json.loads(data), now)

    def end(self) -> None:
        """Check that all has come, and complete the record."""
        record = self._record
        if record.first is None:
            record.first = self._first_chunk
        if record.output_tokens is None:
            record.output_tokens = len(record.chunks)
        if record.error is None and not self._done and record.finish_reason is None:
            fail(record, "incomplete", "the stream ended without a finish reason and without [DONE]")
        elif record.error is None and record.first is None:
            fail(record, "incomplete", "the stream ended without a chunk")

    def _chunk(self, chunk: Any, now: float) -> None:
        if not isinstance(chunk, dict):
            raise EventError("a chunk is no JSON object")
        if chunk.get("error"):
            fail(self._record, "stream_error", message_of(chunk))
        if choices := chunk.get("choices"):
            self._choice(choices[0], now)
        if usage := chunk.get("usage"):
            self._usage(usage)

    def _choice(self, choice: Mapping[str, Any], now: float) -> None:
        record = self._record
        if self._first_chunk is None:
            self._first_chunk = now
        record.finished = now
        if text := _output_of(choice):
            if record.first is None:
                record.first = now
            record.chunks.append(now)
            self._meter.output_chunks += 1
            self.text.append(text)
        if reason := choice.get("finish_reason"):
            record.finish_reason = reason

    def _usage(self, usage: Mapping[str, Any]) -> None:
        record = self._record
        record.usage = isinstance(usage.get("completion_tokens"), int)
        record.prompt_tokens = usage.get("prompt_tokens")
        record.output_tokens = usage.get("completion_tokens")
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _output_of(choice: Mapping[str, Any]) -> str:
    """Return the output in a chunk. One that has only a role, or only a finish reason, has none."""
    if "text" in choice:
        return choice["text"] or ""
    delta = choice.get("delta") or {}
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    if text:
        return str(text)
    return json.dumps(delta["tool_calls"]) if delta.get("tool_calls") else ""


def message_of(body: Any) -> str:
    """Return the message in the body of an error."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json.dumps(error)
    return str(error)


def fail(record: RequestRecord, kind: str, message: str) -> None:
    """Note a failure; the first one counts."""
    if record.error is None:
        record.error, record.message = kind, message[:MESSAGE_LENGTH]
