"""`TokenStream`: one request's answers, as they are made."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Protocol, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from tinyllm.core.request import StreamCredit
from tinyllm.engine.collect import Collector
from tinyllm.engine.messages import Delivery
from tinyllm.errors import EngineClosedError, RequestAbortedError, TinyLLMError
from tinyllm.outputs import GenerationResult, RequestOutput, TokenLogprob
from tinyllm.params import SamplingParams

__all__ = ["StreamOwner", "TokenStream"]

T = TypeVar("T")


class StreamOwner(Protocol):
    """What a stream needs of its engine. The calls never block and may come from any thread."""

    def abandon(self, request_id: str) -> None:
        """Nobody will read on: abort the request."""
        ...

    def wake(self) -> None:
        """A stream that was full has room."""
        ...

    def is_here(self) -> bool:
        """Whether the caller runs on the engine's event loop."""
        ...


class TokenStream(AsyncIterator[RequestOutput], Awaitable[GenerationResult]):
    """The pieces of one request, in order: ``async for piece in stream``, or ``await stream`` for the whole.

    With ``n`` answers their pieces interleave, told apart by ``piece.index``. The stream ends after each
    answer's last piece. A request that ends abnormally raises its error after the pieces before it:
    `RequestAbortedError`, `RequestTimeoutError`, `SlowConsumerError`, `RequestFailedError` or
    `EngineDeadError`; a prompt that was encoded in the background may also raise `InvalidRequestError`.

    A stream that is not read to its end should be closed; leaving an ``async for`` by ``break``, cancellation
    of the reader and garbage collection do that, and ``async with stream`` does it for certain. It belongs to
    the event loop of its engine (to wait in another raises `EngineClosedError`), and to one reader at a time.
    """

    def __init__(
        self, owner: StreamOwner, request_id: str, params: SamplingParams, credit: StreamCredit
    ) -> None:
        self.request_id = request_id
        self.params = params
        """The effective values: the request's own, else the model's defaults, else neutral."""
        self.prompt_token_ids: tuple[int, ...] = ()
        """Empty until the prompt is encoded; known by the first piece at the latest."""
        self.prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
        """Known with the first piece, if asked for; the prompt's first token has none."""
        self.num_tokens = 0
        """Tokens used so far: the prompt's, once it runs, and those of all answers, read or not."""
        self._owner = owner
        self._credit = credit
        # What steps delivered and nobody read yet: an item a step, and one place more for the last word.
        self._sender, self._receiver = anyio.create_memory_object_stream[tuple[RequestOutput, ...]](
            credit.capacity + 1
        )
        # Closed when this object goes, in whatever order a collector takes what it refers to. Nobody waits
        # for them then, so closing wakes nobody and may happen on any thread.
        weakref.finalize(self, _close_all, self._sender, self._receiver).atexit = False
        self._pieces: deque[RequestOutput] = deque()  # the rest of the item that is being read
        self._waiter: anyio.Event | None = None
        self._finished = False  # the engine's last word has come
        self._error: TinyLLMError | None = None
        self._reading = False
        self._collector = Collector()
        self._result: GenerationResult | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the engine's last word has come, or the stream was closed; pieces may be left to read."""
        return self._finished

    @property
    def has_unread(self) -> bool:
        """Whether there is a piece now, so that a read would not wait."""
        return bool(self._pieces or self._receiver.statistics().current_buffer_used)

    # Reading.

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if not self._pieces:
            await self._next_item()
        piece = self._pieces.popleft()
        self._collector.add(piece)
        return piece

    async def _next_item(self) -> None:
        item = await self._exclusively(self._receive)
        if item is None:
            raise self._error or StopAsyncIteration
        self._accept(item)

    def _accept(self, item: tuple[RequestOutput, ...]) -> None:
        self._pieces.extend(item)
        self._credit.read += 1  # first store, then test: the other order loses wake-ups
        if self._credit.stalled:
            self._owner.wake()

    async def _receive(self) -> tuple[RequestOutput, ...] | None:
        """Return the next item, or None at the end."""
        self._check_loop()
        try:
            return await self._receiver.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            return None

    async def _exclusively(self, read: Callable[[], Awaitable[T]]) -> T:
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        self._reading = True
        try:
            return await read()
        except anyio.get_cancelled_exc_class():  # nobody will read on
            self.close()
            raise
        finally:
            self._reading = False

    def take(self, limit: int) -> list[RequestOutput] | None:
        """Return the pieces that are there, at most ``limit``, or none, without waiting; None at the end.

        With `wait` this is the cheap way to read: one turn of the event loop for whatever has come. Raises
        what reading does.
        """
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        taken: list[RequestOutput] = []
        while len(taken) < limit:
            if not self._pieces:
                try:
                    self._accept(self._receiver.receive_nowait())
                except anyio.WouldBlock:
                    return taken
                except (anyio.EndOfStream, anyio.ClosedResourceError):
                    if taken or self._error is None:
                        return taken or None
                    raise self._error from None
            piece = self._pieces.popleft()
            self._collector.add(piece)
            taken.append(piece)
        return taken

    def interrupt(self) -> None:
        """Have `wait` return now, if it is waiting."""
        self._notify()

    async def wait(self) -> None:
        """Wait until a read would not: there is a piece, or the stream has ended. Or until `interrupt`.

        Unlike a read, this may be cancelled (by a timeout, say) and the stream goes on.
        """
        if self._reading:
            raise anyio.BusyResourceError("reading from")
        if self.has_unread or self._finished:
            return
        self._check_loop()
        self._reading, self._waiter = True, anyio.Event()
        try:
            await self._waiter.wait()
        finally:
            self._reading, self._waiter = False, None

    def _check_loop(self) -> None:
        """Refuse to wait where nothing that is delivered would wake the reader."""
        if not (self.has_unread or self._finished or self._owner.is_here()):
            raise EngineClosedError("this stream belongs to another event loop: read it in its engine's")

    async def result(self) -> GenerationResult:
        """Read on to the end and return the whole, with what was read before; ``await stream`` does this."""
        async for _ in self:
            pass
        if self._result is None:
            self._result = self._collector.result(
                self.request_id, self.prompt_token_ids, self.params, self.prompt_logprobs
            )
        return self._result

    def __await__(self) -> Generator[object, object, GenerationResult]:
        return self.result().__await__()

    # Ending.

    def close(self) -> None:
        """Stop the request, unless it has ended, and forget what was not read.

        Reading on raises `RequestAbortedError` if anything is missing.
        """
        if not self._finished:
            self._owner.abandon(self.request_id)
        if not self._finished or self.has_unread:
            self._error = RequestAbortedError("the stream was closed before its end")
        self._pieces.clear()
        self._receiver.close()
        self._finish()

    async def aclose(self) -> None:
        """Do the same as `close`."""
        self.close()

    async def __aenter__(self) -> TokenStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # May run on any thread, in the middle of anything: it only puts an abort.
        if not self._finished:
            self._owner.abandon(self.request_id)

    # The engine's side, on the event loop.

    def deliver(self, delivery: Delivery) -> None:
        """Take what a step made. There is room: the request had credit for it, and an end takes none."""
        if self._finished:
            return
        if delivery.started:
            self.num_tokens += len(self.prompt_token_ids)
        for piece in delivery.pieces:
            self.num_tokens += len(piece.token_ids)
        if delivery.prompt_logprobs is not None:
            self.prompt_logprobs = delivery.prompt_logprobs
        if delivery.pieces:
            self._sender.send_nowait(delivery.pieces)
            self._notify()
        if delivery.finished:
            self.end(delivery.error)

    def end(self, error: TinyLLMError | None) -> None:
        """Take the last word; later ones change nothing."""
        if self._finished:
            return
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._finished = True
        self._sender.close()
        self._notify()

    def _notify(self) -> None:
        if self._waiter is not None:
            self._waiter.set()


def _close_all(sender: MemoryObjectSendStream[Any], receiver: MemoryObjectReceiveStream[Any]) -> None:
    sender.close()
    receiver.close()
