"""Completions on the wire: whole, and chunk by chunk."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tinyllm.outputs import CompletionOutput, RequestOutput, TokenLogprob
from tinyllm.server.errors import Fault
from tinyllm.server.generation import Answered, Generation, Piece, UsageCount
from tinyllm.server.json_text import compact_json, quote
from tinyllm.server.logprobs import PlacedToken, Places, completion_logprobs, prompt_logprobs_field
from tinyllm.server.reply import ChunkFrames, Reply
from tinyllm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tinyllm.engine.stream import TokenStream

__all__ = ["CompletionFrames", "Echo", "completion"]

_place = attrgetter("place")


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is to stand before its answers."""

    text: str
    is_given: bool
    """Whether the text is the client's own, and not made of its token ids."""

    def tokens(self, stream: TokenStream, tokenizer: Tokenizer | None) -> list[PlacedToken]:
        """Return the prompt's tokens, if it was scored."""
        if tokenizer is None or stream.prompt_logprobs is None:
            return []
        ids = stream.prompt_token_ids
        own = self._num_own(ids, tokenizer)
        places = Places(tokenizer, skip_special_tokens=False)
        starts = [0] * own + [places.next(token_id) for token_id in ids[own:]]
        texts = [tokenizer.token(token_id) for token_id in ids]
        return list(map(PlacedToken, ids, starts, texts, stream.prompt_logprobs))

    def _num_own(self, ids: Sequence[int], tokenizer: Tokenizer) -> int:
        """Return how many tokens the tokenizer put before a given text: they make none of it."""
        number = 0
        while self.is_given and number < len(ids) and ids[number] in tokenizer.special_token_ids:
            if self.text.startswith(tokenizer.token(ids[number])):
                break
            number += 1
        return number


class _Answer:
    """The tokens of one answer, placed in its text if they are to be shown with log probabilities."""

    def __init__(self, reply: Reply, stream: TokenStream, tokenizer: Tokenizer | None, start: int) -> None:
        skips = bool(stream.params.skip_special_tokens)
        self._places = (
            Places(tokenizer, skip_special_tokens=skips, start=start) if reply.with_logprobs else None
        )

    def tokens(self, token_ids: Sequence[int], entries: Sequence[TokenLogprob] | None) -> list[PlacedToken]:
        """Return the next tokens."""
        if self._places is None:
            return [PlacedToken(token_id, 0) for token_id in token_ids]
        return [
            PlacedToken(token_id, self._places.next(token_id), entry.token, entry)
            for token_id, entry in zip(token_ids, entries or (), strict=True)
        ]


def completion(
    reply: Reply,
    generation: Generation,
    answered: list[Answered],
    echoes: Sequence[Echo] | None,
    tokenizer: Tokenizer | None,
    *,
    prompt_logprobs: bool,
) -> dict[str, Any]:
    """Return the response to a completions request that does not stream.

    ``prompt_logprobs`` says whether they were asked for by that name, and not only for an echo.
    """
    usage = UsageCount(generation.streams)
    choices = []
    for number, one in enumerate(answered):
        for piece in one.pieces:
            usage.add(Piece(number, piece))
        echo, stream = (echoes[number] if echoes else Echo("", True)), generation.streams[number]
        prompt = echo.tokens(stream, tokenizer) if echoes and reply.with_logprobs else []
        for answer in one.result.choices:
            choice = _choice(reply, number * reply.n + answer.index, answer, stream, echo.text)
            if prompt_logprobs and stream.prompt_logprobs is not None:
                choice["prompt_logprobs"] = prompt_logprobs_field(stream.prompt_logprobs)
            if reply.with_logprobs:
                placed = _Answer(reply, stream, tokenizer, len(echo.text))
                tokens = [*prompt, *placed.tokens(answer.token_ids, answer.logprobs)]
                end = len(choice["text"])
                choice["logprobs"] = completion_logprobs(tokens, end, as_ids=reply.tokens_as_ids)
            choices.append(choice)
    return reply.head("text_completion") | {"choices": choices, "usage": usage.as_json()}


def _choice(
    reply: Reply, index: int, answer: CompletionOutput, stream: TokenStream, before: str
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "text": before + answer.text,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
    }
    if reply.token_ids:
        choice |= {"token_ids": list(answer.token_ids), "prompt_token_ids": list(stream.prompt_token_ids)}
    return choice


class CompletionFrames:
    """Writes the chunks of a completions stream."""

    def __init__(
        self,
        reply: Reply,
        generation: Generation,
        echoes: Sequence[Echo] | None,
        tokenizer: Tokenizer | None,
    ) -> None:
        self._frames = ChunkFrames(reply, "text_completion", generation)
        self._streams = generation.streams
        self._echoes = echoes
        self._tokenizer = tokenizer
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
            echo = None if self._echoes is None else self._echoes[piece.prompt]
            choice = _TextChoice(reply, index, self._streams[piece.prompt], self._tokenizer, echo)
            self._choices[index] = choice
            if echo is not None:
                echoed = self._frames.chunk(choice.echo(echo))
        chunk = choice.chunk(piece.output)
        return echoed + self._frames.chunk(chunk) if chunk else echoed

    def end(self) -> bytes:
        """Return the counts, if asked for, and the end."""
        return self._frames.last()

    def fail(self, fault: Fault) -> bytes:
        """Return the error and the end."""
        return self._frames.failure(fault)


class _TextChoice:
    """One answer of a stream: what is known of it so far."""

    def __init__(
        self, reply: Reply, index: int, stream: TokenStream, tokenizer: Tokenizer | None, echo: Echo | None
    ) -> None:
        self._reply = reply
        self._index = index
        self._stream = stream
        self._tokenizer = tokenizer
        self._sent = 0 if echo is None else len(echo.text)
        self._answer = _Answer(reply, stream, tokenizer, self._sent)
        self._held: list[PlacedToken] = []
        self._begun = False

    def echo(self, echo: Echo) -> str:
        """Return a choice with the prompt."""
        tokens = echo.tokens(self._stream, self._tokenizer) if self._reply.with_logprobs else []
        return self._json(echo.text, tokens, (), "null")

    def chunk(self, output: RequestOutput) -> str | None:
        """Return a choice with the piece's text; None as long as there is none to show."""
        self._held += self._answer.tokens(output.token_ids, output.logprobs)
        if not output.text and output.finish_reason is None:
            return None
        self._sent += len(output.text)
        tokens = self._take(is_last=output.finish_reason is not None)
        finish = "null"
        if output.finish_reason is not None:
            finish = f'"{output.finish_reason}","stop_reason":{compact_json(output.stop_reason)}'
        return self._json(output.text, tokens, [token.token_id for token in tokens], finish)

    def _take(self, *, is_last: bool) -> list[PlacedToken]:
        """Return the tokens whose text has begun; those of text that is held back go with it."""
        count = len(self._held)
        if not is_last and self._reply.with_logprobs:
            count = bisect_left(self._held, self._sent, key=_place)
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _json(self, text: str, tokens: Sequence[PlacedToken], token_ids: Sequence[int], finish: str) -> str:
        shown = "null"
        if self._reply.with_logprobs:
            shown = compact_json(completion_logprobs(tokens, self._sent, as_ids=self._reply.tokens_as_ids))
        extra = f',"token_ids":{compact_json(token_ids)}' if self._reply.token_ids else ""
        if self._reply.token_ids and not self._begun:
            extra += f',"prompt_token_ids":{compact_json(self._stream.prompt_token_ids)}'
        self._begun = True
        return (
            f'{{"index":{self._index},"text":{quote(text)},"logprobs":{shown}'
            f'{extra},"finish_reason":{finish}}}'
        )
