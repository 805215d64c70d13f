"""Chat completions on the wire: whole, and chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyllm.outputs import CompletionOutput, RequestOutput, TokenLogprob
from tinyllm.server.errors import Fault
from tinyllm.server.generation import Answered, Generation, Piece, UsageCount
from tinyllm.server.json_text import compact_json, quote
from tinyllm.server.logprobs import chat_logprobs, prompt_logprobs_field
from tinyllm.server.reasoning import ReasoningSplitter, Split, SplitterFactory, divide
from tinyllm.server.reply import ChunkFrames, Held, Reply

__all__ = ["ChatFrames", "chat_completion"]


def chat_completion(
    reply: Reply,
    generation: Generation,
    answered: Answered,
    make_splitter: SplitterFactory,
    *,
    reasoning: bool,
) -> dict[str, Any]:
    """Return the response to a chat request that does not stream."""
    usage = UsageCount(generation.streams)
    result = answered.result
    choices = []
    for answer in result.choices:
        pieces = [piece for piece in answered.pieces if piece.index == answer.index]
        split = _split(pieces, make_splitter(), usage)
        choices.append(_choice(reply, answer, split, reasoning=reasoning))
    body = reply.head("chat.completion") | {"choices": choices, "usage": usage.as_json()}
    if reply.token_ids:
        body["prompt_token_ids"] = list(result.prompt_token_ids)
    if result.prompt_logprobs is not None:
        body["prompt_logprobs"] = prompt_logprobs_field(result.prompt_logprobs)
    return body


def _choice(reply: Reply, answer: CompletionOutput, split: Split, *, reasoning: bool) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": split.content, "refusal": None}
    if split.reasoning and reasoning:
        message |= {"reasoning_content": split.reasoning, "reasoning": split.reasoning}
    choice: dict[str, Any] = {
        "index": answer.index,
        "message": message,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if reply.with_logprobs:
        choice["logprobs"] = chat_logprobs(answer.logprobs or (), as_ids=reply.tokens_as_ids)
    if reply.token_ids:
        choice["token_ids"] = list(answer.token_ids)
    return choice


class ChatFrames:
    """Writes the chunks of a chat stream."""

    def __init__(
        self, reply: Reply, generation: Generation, make_splitter: SplitterFactory, *, reasoning: bool
    ) -> None:
        self._frames = ChunkFrames(reply, "chat.completion.chunk", generation)
        self._make_splitter = make_splitter
        self._reasoning = reasoning
        self._prompt = generation.streams[0] if reply.token_ids else None
        self._choices: dict[int, _ChatChoice] = {}

    def begin(self) -> bytes:
        """Return nothing: the role comes with the first token, which clients take for its time."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Return the chunks of a piece: thoughts, text and the end, as far as it has them."""
        choice = self._choices.get(piece.output.index)
        if choice is None:
            choice = _ChatChoice(self._frames.reply, piece.output.index, self._make_splitter())
            self._choices[piece.output.index] = choice
        self._frames.usage.add(piece, reasoning=choice.thinking)
        chunks = choice.chunks(piece, reasoning=self._reasoning)
        return b"".join(self._frames.chunk(chunk, self._prompt_ids()) for chunk in chunks)

    def end(self) -> bytes:
        """Return the counts, if asked for, and the end."""
        return self._frames.last()

    def fail(self, fault: Fault) -> bytes:
        """Return the error and the end."""
        return self._frames.failure(fault)

    def _prompt_ids(self) -> str:
        """Return the field with the prompt's token ids, which the first chunk has, if they were asked for."""
        prompt, self._prompt = self._prompt, None
        return "" if prompt is None else f',"prompt_token_ids":{compact_json(prompt.prompt_token_ids)}'


class _ChatChoice:
    """One answer of a stream: what is known of it so far."""

    def __init__(self, reply: Reply, index: int, splitter: ReasoningSplitter | None) -> None:
        self._reply = reply
        self._index = index
        self._splitter = splitter
        self._held = Held()
        self._role = '"role":"assistant",'

    @property
    def thinking(self) -> bool:
        return self._splitter is not None and self._splitter.thinking

    def chunks(self, piece: Piece, *, reasoning: bool) -> list[str]:
        output = piece.output
        self._held.add(piece)
        split = divide(output, self._splitter)
        chunks = []
        if split.reasoning and reasoning:
            text = quote(split.reasoning)
            chunks.append(self._chunk(f'"reasoning_content":{text},"reasoning":{text}'))
        if split.content or (output.finish_reason is not None and self._role):
            chunks.append(self._chunk(f'"content":{quote(split.content)}'))
        if output.finish_reason is not None:
            stop_reason = compact_json(output.stop_reason)
            chunks.append(self._chunk("", f'"{output.finish_reason}","stop_reason":{stop_reason}'))
        return chunks

    def _chunk(self, delta: str, finish: str = "null") -> str:
        role, self._role = self._role, ""
        logprobs, token_ids = self._held.take()
        extra = f',"token_ids":{compact_json(token_ids)}' if self._reply.token_ids else ""
        return (
            f'{{"index":{self._index},"delta":{{{role}{delta}}},"logprobs":{self._logprobs(logprobs)}'
            f'{extra},"finish_reason":{finish}}}'
        )

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> str:
        if not self._reply.with_logprobs or not entries:
            return "null"
        return compact_json(chat_logprobs(entries, as_ids=self._reply.tokens_as_ids))


def _split(pieces: list[RequestOutput], splitter: ReasoningSplitter | None, usage: UsageCount) -> Split:
    """Divide a whole answer, and count its tokens, just as a stream would."""
    splits = []
    for piece in pieces:
        usage.add(Piece(0, piece), reasoning=splitter is not None and splitter.thinking)
        splits.append(divide(piece, splitter))
    return Split("".join(part.reasoning for part in splits), "".join(part.content for part in splits))
