"""`Reply`: what all of one generation's responses repeat, and what its client asked to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyllm.outputs import TokenLogprob
from tinyllm.server.errors import Fault, error_body
from tinyllm.server.generation import Generation, Piece, UsageCount
from tinyllm.server.json_text import compact_json
from tinyllm.server.sse import DONE

__all__ = ["ChunkFrames", "Held", "Reply"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The fixed part of a response and its chunks."""

    id: str
    created: int
    model: str
    fingerprint: str
    n: int = 1
    """Answers to each prompt."""
    include_usage: bool = False
    continuous_usage: bool = False
    with_logprobs: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False

    def head(self, kind: str) -> dict[str, Any]:
        """Return the fields that come first in every object."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }


class Held:
    """Tokens of one choice whose text is not out yet; they go with the text they belong to."""

    def __init__(self) -> None:
        self.logprobs: list[TokenLogprob] = []
        self.token_ids: list[int] = []

    def add(self, piece: Piece) -> None:
        """Take a piece's tokens."""
        self.token_ids += piece.output.token_ids
        self.logprobs += piece.output.logprobs or ()

    def take(self) -> tuple[Sequence[TokenLogprob], Sequence[int]]:
        """Hand over what there is, and begin anew."""
        taken = self.logprobs, self.token_ids
        self.logprobs, self.token_ids = [], []
        return taken


class ChunkFrames:
    """Writes chunks around a template that is made once: only what differs is put together for each."""

    def __init__(self, reply: Reply, kind: str, generation: Generation) -> None:
        self.reply = reply
        self.usage = UsageCount(generation.streams)
        self._head = compact_json(reply.head(kind)).removesuffix("}")

    def chunk(self, choices: str, extra: str = "") -> bytes:
        """Return a chunk as an event; ``choices`` is JSON, without the brackets around it.

        ``extra`` is what else the chunk has, beginning with a comma.
        """
        return f'data: {self._head},"choices":[{choices}]{extra}{self._usage()}}}\n\n'.encode()

    def last(self) -> bytes:
        """Return the chunk with the token counts, if it was asked for, and the end of the stream."""
        if not self.reply.include_usage:
            return DONE
        usage = compact_json(self.usage.as_json())
        return f'data: {self._head},"choices":[],"usage":{usage}}}\n\n'.encode() + DONE

    def failure(self, fault: Fault) -> bytes:
        """Return an error inside the stream, and its end."""
        return f"data: {compact_json(error_body(fault))}\n\n".encode() + DONE

    def _usage(self) -> str:
        if self.reply.continuous_usage:
            return f',"usage":{compact_json(self.usage.as_json())}'
        return ',"usage":null' if self.reply.include_usage else ""
