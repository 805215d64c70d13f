"""Completions on the wire: whole, and chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tinyllm.outputs import CompletionOutput, TokenLogprob
from tinyllm.server.errors import Fault
from tinyllm.server.generation import Answered, Generation, Piece, UsageCount
from tinyllm.server.json_text import compact_json, quote
from tinyllm.server.logprobs import CompletionLogprobs, prompt_logprobs_field
from tinyllm.server.reply import ChunkFrames, Held, Reply

if TYPE_CHECKING:
    from tinyllm.engine.stream import TokenStream

__all__ = ["CompletionFrames", "Echo", "completion"]


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is to stand before its answers."""

    text: str
    first_token: str
    """The text of its first token, which has no log probability."""


def completion(
    reply: Reply, generation: Generation, answered: list[Answered], echoes: Sequence[Echo] | None
) -> dict[str, Any]:
    """Return the response to a completions request that does not stream."""
    usage = UsageCount(generation.streams)
    choices = []
    for number, one in enumerate(answered):
        for piece in one.pieces:
            usage.add(Piece(number, piece))
        echo = echoes[number] if echoes else None
        for answer in one.result.choices:
            index = number * reply.n + answer.index
            choices.append(_choice(reply, index, answer, generation.streams[number], echo))
    return reply.head("text_completion") | {"choices": choices, "usage": usage.as_json()}


def _choice(
    reply: Reply, index: int, answer: CompletionOutput, stream: TokenStream, echo: Echo | None
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "text": answer.text if echo is None else echo.text + answer.text,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if reply.with_logprobs:
        entries: list[TokenLogprob | None] = [*(answer.logprobs or ())]
        if echo is not None:
            entries = [*(stream.prompt_logprobs or ()), *entries]
        writer = CompletionLogprobs(as_ids=reply.tokens_as_ids)
        choice["logprobs"] = writer.take(entries, echo.first_token if echo else "")
    elif stream.prompt_logprobs is not None:
        choice["prompt_logprobs"] = prompt_logprobs_field(stream.prompt_logprobs)
    if reply.token_ids:
        choice |= {"token_ids": list(answer.token_ids), "prompt_token_ids": list(stream.prompt_token_ids)}
    return choice


class CompletionFrames:
    """Writes the chunks of a completions stream."""

    def __init__(self, reply: Reply, generation: Generation, echoes: Sequence[Echo] | None) -> None:
        self._frames = ChunkFrames(reply, "text_completion", generation)
        self._streams = generation.streams
        self._echoes = echoes
        self._choices: dict[int, _TextChoice] = {}

    def begin(self) -> bytes:
        """Return nothing: the first chunk has the first token."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Return the chunk of a piece, and before an answer's first that of its echoed prompt."""
        reply = self._frames.reply
        index = piece.prompt * reply.n + piece.output.index
        self._frames.usage.add(piece)
        choice = self._choices.get(index)
        echoed = b""
        if choice is None:
            choice = self._choices[index] = _TextChoice(reply, index)
            if self._echoes is not None:
                echo, stream = self._echoes[piece.prompt], self._streams[piece.prompt]
                echoed = self._frames.chunk(choice.echo(echo, stream))
        chunk = choice.chunk(piece)
        return echoed + self._frames.chunk(chunk) if chunk else echoed

    def end(self) -> bytes:
        """Return the counts, if asked for, and the end."""
        return self._frames.last()

    def fail(self, fault: Fault) -> bytes:
        """Return the error and the end."""
        return self._frames.failure(fault)


class _TextChoice:
    """One answer of a stream: what is known of it so far."""

    def __init__(self, reply: Reply, index: int) -> None:
        self._reply = reply
        self._index = index
        self._held = Held()
        self._logprobs = CompletionLogprobs(as_ids=reply.tokens_as_ids)

    def echo(self, echo: Echo, stream: TokenStream) -> str:
        logprobs = self._logprobs.take(stream.prompt_logprobs or (), echo.first_token)
        return self._json(echo.text, logprobs, stream.prompt_token_ids, "null")

    def chunk(self, piece: Piece) -> str | None:
        """Return a choice with the piece's text; None as long as there is none to show."""
        output = piece.output
        self._held.add(piece)
        if not output.text and output.finish_reason is None:
            return None
        entries, token_ids = self._held.take()
        finish = "null"
        if output.finish_reason is not None:
            finish = f'"{output.finish_reason}","stop_reason":{compact_json(output.stop_reason)}'
        return self._json(output.text, self._logprobs.take(entries), token_ids, finish)

    def _json(self, text: str, logprobs: dict[str, Any], token_ids: Sequence[int], finish: str) -> str:
        shown = compact_json(logprobs) if self._reply.with_logprobs else "null"
        extra = f',"token_ids":{compact_json(token_ids)}' if self._reply.token_ids else ""
        return (
            f'{{"index":{self._index},"text":{quote(text)},"logprobs":{shown}'
            f'{extra},"finish_reason":{finish}}}'
        )
