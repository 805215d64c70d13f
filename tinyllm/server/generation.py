"""`Generation`: the streams of one HTTP request, one for each prompt, read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tinyllm.errors import TinyLLMError
from tinyllm.outputs import GenerationResult, RequestOutput
from tinyllm.server.context import Call
from tinyllm.server.watch import Watch

if TYPE_CHECKING:
    from tinyllm.engine.stream import TokenStream

__all__ = ["Answered", "Generation", "Piece", "UsageCount"]

MAX_BATCH: Final = 32
"""Pieces of one stream that are taken at once."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt and all its answers, whole and in the pieces they came in."""

    result: GenerationResult
    pieces: list[RequestOutput]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer, and which prompt it answers."""

    prompt: int
    output: RequestOutput


class Generation:
    """Reads the streams of a call. They are closed with the call; see `Call.close`."""

    def __init__(self, call: Call, streams: list[TokenStream]) -> None:
        self._call = call
        self.streams = streams
        self.field_names = call.field_names
        self._open = dict(enumerate(streams))
        self._waits: dict[asyncio.Task[None], int] = {}
        self._ready: list[Piece] = []
        self._error: TinyLLMError | None = None
        self._watch = Watch()
        call.at_end.append(self._cancel_waits)

    async def results(self) -> list[Answered]:
        """Read everything, and return what each prompt gave, in order."""
        return await asyncio.gather(*map(_collect, self.streams))

    async def peek(self, patience: float) -> None:
        """Wait for the first piece, but no longer than ``patience`` seconds; raises what the streams raise.

        Until this returns, no header has been sent, so an error keeps its own HTTP status.
        """
        self._ready = await self._read(patience)

    async def batches(self, patience: float) -> AsyncIterator[list[Piece]]:
        """Yield the pieces as they come, those that are there together; none, if none came in time.

        A reader that falls behind finds more in each batch, and so catches up.
        """
        if self._ready:
            yield self._ready
        while self._open or self._error:
            pieces = await self._read(patience)
            if pieces or self._open:
                yield pieces

    async def _read(self, patience: float) -> list[Piece]:
        """Return what is there, at least one piece; none when the time is over or all streams have ended."""
        while self._open:
            indices = await self._wait(patience)
            pieces = [piece for index in indices for piece in self._take(index)]
            if pieces or not indices:
                return pieces
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return []

    def _take(self, index: int) -> list[Piece]:
        """Return what a stream has. If it ends in an error, that ends all, after what was read before it."""
        if (stream := self._open.get(index)) is None:
            return []
        try:
            outputs = stream.take(MAX_BATCH)
        except TinyLLMError as error:
            self._error = self._error or error
            self._open.clear()
            return []
        if outputs is None:
            self._open.pop(index, None)
        return [Piece(index, output) for output in outputs or ()]

    async def _wait(self, patience: float) -> list[int]:
        """Wait until at least one stream has something, and return which."""
        if len(self.streams) == 1:
            return [0] if await self._wait_alone(self.streams[0], patience) else []
        for index in self._open.keys() - self._waits.values():
            self._waits[asyncio.create_task(self._open[index].wait())] = index
        done, _ = await asyncio.wait(self._waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        return sorted(self._waits.pop(task) for task in done)

    async def _wait_alone(self, stream: TokenStream, patience: float) -> bool:
        """Do the same for the only stream, which is most of what a server does, so it has to be cheap."""
        with self._watch(patience, stream.interrupt) as watch:
            await stream.wait()
        return not watch.rang

    def _cancel_waits(self) -> None:
        self._watch.close()
        for task in self._waits:
            task.cancel()


async def _collect(stream: TokenStream) -> Answered:
    pieces = [piece async for piece in stream]
    return Answered(await stream.result(), pieces)


class UsageCount:
    """Counts the tokens of a generation while it runs: prompts once, answers summed."""

    def __init__(self, streams: list[TokenStream]) -> None:
        self._streams = streams
        self._cached = [0] * len(streams)
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def add(self, piece: Piece, *, reasoning: bool = False) -> None:
        """Count a piece."""
        count = len(piece.output.token_ids)
        self.completion_tokens += count
        self.reasoning_tokens += count if reasoning else 0
        if piece.output.metrics is not None and piece.output.index == 0:  # other answers share its prompt
            self._cached[piece.prompt] = piece.output.metrics.num_cached_tokens

    def as_json(self) -> dict[str, Any]:
        """Return OpenAI's ``usage``."""
        prompt_tokens = sum(len(stream.prompt_token_ids) for stream in self._streams)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }
