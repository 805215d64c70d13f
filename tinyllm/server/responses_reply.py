"""Responses on the wire: whole, and event by event."""

from __future__ import annotations

from typing import Any, Final

from tinyllm.outputs import FinishReason
from tinyllm.params import SamplingParams
from tinyllm.server.errors import Fault
from tinyllm.server.generation import Answered, Piece, UsageCount
from tinyllm.server.json_text import compact_json
from tinyllm.server.protocol.responses import ResponsesRequest
from tinyllm.server.reasoning import ReasoningSplitter, SplitterFactory, divide
from tinyllm.server.reply import Reply

__all__ = ["ResponseDocument", "ResponseFrames", "response_document"]

MESSAGE: Final = "message"
REASONING: Final = "reasoning"
PARTS: Final = {MESSAGE: "output_text", REASONING: "reasoning_text"}


class ResponseDocument:
    """A response object as it grows: items of text, in the order in which they began."""

    def __init__(
        self, reply: Reply, request: ResponsesRequest, params: SamplingParams, usage: UsageCount
    ) -> None:
        self._reply = reply
        self._request = request
        self._params = params
        self.usage = usage
        self.items: list[dict[str, Any]] = []
        self.status = "in_progress"
        self.error: dict[str, Any] | None = None

    def begin_item(self, kind: str) -> dict[str, Any]:
        """Add an empty item."""
        name = self._reply.id.removeprefix("resp_")
        number = len(self.items)
        item: dict[str, Any] = {"type": kind, "status": "in_progress", "content": []}
        if kind == MESSAGE:
            item |= {"id": f"msg_{name}_{number}", "role": "assistant"}
        else:
            item |= {"id": f"rs_{name}_{number}", "summary": []}
        self.items.append(item)
        return item

    def finish(self, reason: FinishReason | None) -> None:
        """Say how it ended."""
        self.status = "incomplete" if reason is FinishReason.LENGTH else "completed"

    def as_json(self) -> dict[str, Any]:
        """Return the object."""
        details = {"reason": "max_output_tokens"} if self.status == "incomplete" else None
        done = self.status != "in_progress"
        return {
            "id": self._reply.id,
            "object": "response",
            "created_at": self._reply.created,
            "status": self.status,
            "error": self.error,
            "incomplete_details": details,
            "instructions": self._request.instructions,
            "max_output_tokens": self._request.max_output_tokens,
            "model": self._reply.model,
            "output": self.items,
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "reasoning": {"effort": self._request.reasoning.effort, "summary": None},
            "store": False,
            "temperature": self._params.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": self._params.top_p,
            "truncation": "disabled",
            "usage": _usage(self.usage) if done else None,
            "metadata": {},
        }


def response_document(
    document: ResponseDocument, answered: Answered, splitter: ReasoningSplitter | None
) -> dict[str, Any]:
    """Return the response to a request that does not stream."""
    texts = {REASONING: "", MESSAGE: ""}
    for piece in answered.pieces:
        document.usage.add(Piece(0, piece), reasoning=splitter is not None and splitter.thinking)
        split = divide(piece, splitter)
        texts[REASONING] += split.reasoning
        texts[MESSAGE] += split.content
    document.finish(answered.result.finish_reason)
    for kind, text in texts.items():
        if text or kind == MESSAGE:
            item = document.begin_item(kind)
            item |= {"status": "completed", "content": [_part(kind, text)]}
    for item, text in zip(reversed(document.items), (texts[MESSAGE], texts[REASONING]), strict=False):
        item["status"] = document.status  # of what was being said when it ended
        if text:
            break
    return document.as_json()


class ResponseFrames:
    """Writes the events of a response's stream. Each has a name and a number."""

    def __init__(self, document: ResponseDocument, make_splitter: SplitterFactory) -> None:
        self._document = document
        self._make_splitter = make_splitter
        self._splitter: ReasoningSplitter | None = None
        self._begun = False
        self._number = 0
        self._text = ""
        self._reason: FinishReason | None = None

    def begin(self) -> bytes:
        """Return the events that say that there will be a response."""
        response = self._document.as_json()
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece."""
        if not self._begun:
            self._begun, self._splitter = True, self._make_splitter()
        output, splitter = piece.output, self._splitter
        self._document.usage.add(piece, reasoning=splitter is not None and splitter.thinking)
        self._reason = output.finish_reason
        split = divide(output, splitter)
        return self._say(REASONING, split.reasoning) + self._say(MESSAGE, split.content)

    def end(self) -> bytes:
        """Return the events that end the last item and the response."""
        self._document.finish(self._reason)
        status = self._document.status
        frames = b"" if self._kind == MESSAGE else self._close_item(status) + self._open_item(MESSAGE)
        frames += self._close_item(status)
        return frames + self._event(f"response.{self._document.status}", response=self._document.as_json())

    def fail(self, fault: Fault) -> bytes:
        """Return the events of a response that ends in an error."""
        self._document.status = "failed"
        self._document.error = {"code": fault.code, "message": fault.message}
        return self._event("error", code=fault.code, message=fault.message, param=fault.param) + self._event(
            "response.failed", response=self._document.as_json()
        )

    @property
    def _kind(self) -> str | None:
        """Of the item that is being said."""
        items = self._document.items
        return str(items[-1]["type"]) if items else None

    def _say(self, kind: str, text: str) -> bytes:
        if not text:
            return b""
        frames = b"" if self._kind == kind else self._close_item() + self._open_item(kind)
        self._text += text
        extra: dict[str, Any] = {"logprobs": []} if kind == MESSAGE else {}
        return frames + self._event(f"response.{PARTS[kind]}.delta", **self._place(), delta=text, **extra)

    def _open_item(self, kind: str) -> bytes:
        item = self._document.begin_item(kind)
        self._text = ""
        index = len(self._document.items) - 1
        return self._event("response.output_item.added", output_index=index, item=item) + self._event(
            "response.content_part.added", **self._place(), part=_part(kind, "")
        )

    def _close_item(self, status: str = "completed") -> bytes:
        kind = self._kind
        if kind is None:
            return b""
        part = _part(kind, self._text)
        item = self._document.items[-1]
        item |= {"status": status, "content": [part]}
        index = len(self._document.items) - 1
        extra: dict[str, Any] = {"logprobs": []} if kind == MESSAGE else {}
        return (
            self._event(f"response.{PARTS[kind]}.done", **self._place(), text=self._text, **extra)
            + self._event("response.content_part.done", **self._place(), part=part)
            + self._event("response.output_item.done", output_index=index, item=item)
        )

    def _place(self) -> dict[str, Any]:
        items = self._document.items
        return {"item_id": items[-1]["id"], "output_index": len(items) - 1, "content_index": 0}

    def _event(self, name: str, **fields: Any) -> bytes:
        data = compact_json({"type": name, "sequence_number": self._number, **fields})
        self._number += 1
        return f"event: {name}\ndata: {data}\n\n".encode()


def _part(kind: str, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": PARTS[kind], "text": text}
    return part | {"annotations": [], "logprobs": []} if kind == MESSAGE else part


def _usage(usage: UsageCount) -> dict[str, Any]:
    counts = usage.as_json()
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"],
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": counts["completion_tokens_details"],
        "total_tokens": counts["total_tokens"],
    }
