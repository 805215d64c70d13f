from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest

from tinyllm.core.request import StreamCredit
from tinyllm.engine.messages import Delivery
from tinyllm.engine.stream import TokenStream
from tinyllm.errors import EngineClosedError, RequestAbortedError, RequestFailedError
from tinyllm.outputs import FinishReason, RequestMetrics, RequestOutput
from tinyllm.params import SamplingParams

pytestmark = pytest.mark.anyio


class Owner:
    """Notes what a stream asks of its engine."""

    def __init__(self) -> None:
        self.abandoned: list[str] = []
        self.wakes = 0
        self.here = True

    def abandon(self, request_id: str) -> None:
        self.abandoned.append(request_id)

    def wake(self) -> None:
        self.wakes += 1

    def is_here(self) -> bool:
        return self.here


def make_stream(owner: Owner, credit: Any = None) -> TokenStream:
    return TokenStream(owner, "r", SamplingParams(), credit or StreamCredit(4))


def piece(text: str, *, index: int = 0, end: bool = False) -> RequestOutput:
    reason, metrics = (FinishReason.STOP, RequestMetrics()) if end else (None, None)
    return RequestOutput("r", index, text, (1,), finish_reason=reason, metrics=metrics)


def item(*texts: str, end: bool = False) -> Delivery:
    return Delivery("r", tuple(piece(text, end=end) for text in texts), finished=end)


async def test_pieces_come_in_order_and_the_stream_ends() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a", "b"))
    stream.deliver(item("c", end=True))
    assert [out.text async for out in stream] == ["a", "b", "c"]
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_awaiting_collects() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a"))
    stream.deliver(item("b", end=True))
    result = await stream
    assert (result.text, result.token_ids, result.finish_reason) == ("ab", (1, 1), FinishReason.STOP)
    assert await stream is result


async def test_the_whole_is_there_after_reading_piece_by_piece() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a", "b"))
    await anext(stream)
    stream.deliver(item("c", end=True))
    assert (await stream.result()).text == "abc"
    assert [out.text async for out in stream] == []
    assert (await stream).text == "abc"


async def test_an_error_comes_after_the_pieces_before_it() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a"))
    stream.deliver(Delivery("r", finished=True, error=RequestFailedError("broken")))
    assert (await anext(stream)).text == "a"
    for _ in range(2):
        with pytest.raises(RequestFailedError, match="broken"):
            await anext(stream)


async def test_only_the_first_last_word_counts() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a", end=True))
    stream.end(RequestFailedError("late"))
    stream.deliver(item("late"))
    assert [out.text async for out in stream] == ["a"]


async def test_a_full_buffer_has_room_for_the_ending() -> None:
    credit = StreamCredit(1)
    stream = make_stream(Owner(), credit)
    stream.deliver(item("a"))
    credit.sent += 1
    assert credit.available == 0
    stream.end(RequestFailedError("ended while full"))
    assert (await anext(stream)).text == "a"
    with pytest.raises(RequestFailedError):
        await anext(stream)


class SpyCredit:
    """Notes how far ``read`` had got whenever ``stalled`` was looked at."""

    def __init__(self) -> None:
        self.capacity, self.sent, self.read = 1, 0, 0
        self.read_when_tested: list[int] = []

    @property
    def stalled(self) -> bool:
        self.read_when_tested.append(self.read)
        return True


async def test_a_read_is_stored_before_the_test_for_a_wakeup() -> None:
    # The other order loses wake-ups: the executor thread marks the stall and sees the old ``read``, after
    # the reader has seen that there is none.
    owner, credit = Owner(), SpyCredit()
    stream = make_stream(owner, credit)
    stream.deliver(item("a"))
    await anext(stream)
    assert credit.read_when_tested == [1]
    assert owner.wakes == 1
    stream.close()


async def test_credit_counts_items_and_not_pieces() -> None:
    credit = StreamCredit(4)
    stream = make_stream(Owner(), credit)
    stream.deliver(item("a", "b"))
    await anext(stream)
    assert credit.read == 1
    await anext(stream)
    assert credit.read == 1
    stream.close()


async def test_closing_aborts_once() -> None:
    owner = Owner()
    stream = make_stream(owner)
    stream.deliver(item("a"))
    stream.close()
    await stream.aclose()
    with pytest.raises(RequestAbortedError):
        await anext(stream)
    del stream
    gc.collect()
    assert owner.abandoned == ["r"]


async def test_closing_after_the_end_aborts_nothing() -> None:
    owner = Owner()
    stream = make_stream(owner)
    stream.deliver(item("a", end=True))
    assert [out.text async for out in stream] == ["a"]
    stream.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert owner.abandoned == []


async def test_what_was_closed_with_pieces_left_is_not_taken_for_whole() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a", end=True))
    stream.close()
    with pytest.raises(RequestAbortedError):
        await stream


async def test_break_aborts() -> None:
    owner = Owner()

    def open_stream() -> TokenStream:
        stream = make_stream(owner)
        stream.deliver(item("a", "b"))
        return stream

    async for _ in open_stream():
        break
    gc.collect()
    assert owner.abandoned == ["r"]


async def test_garbage_aborts() -> None:
    owner = Owner()
    make_stream(owner)
    gc.collect()
    assert owner.abandoned == ["r"]


async def test_leaving_the_context_aborts() -> None:
    owner = Owner()
    async with make_stream(owner) as stream:
        stream.deliver(item("a"))
    assert owner.abandoned == ["r"]


async def test_cancelling_the_reader_aborts() -> None:
    owner = Owner()
    stream = make_stream(owner)
    with anyio.move_on_after(0.01) as scope:
        await anext(stream)
    assert scope.cancelled_caught
    assert owner.abandoned == ["r"]


async def test_waiting_may_be_cancelled_and_the_stream_goes_on() -> None:
    owner = Owner()
    stream = make_stream(owner)
    with anyio.move_on_after(0.01):
        await stream.wait()
    assert owner.abandoned == []
    stream.deliver(item("a", end=True))
    await stream.wait()
    assert [out.text async for out in stream] == ["a"]


async def test_a_waiting_reader_is_woken_by_piece_and_by_end() -> None:
    stream = make_stream(Owner())
    got: list[str] = []
    woken = anyio.Event()

    async def read() -> None:
        async for out in stream:
            got.append(out.text)
            woken.set()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            stream.deliver(item("a"))
            await woken.wait()
            await anyio.wait_all_tasks_blocked()
            stream.deliver(item("b", end=True))
    assert got == ["a", "b"]


async def test_closing_wakes_the_reader() -> None:
    stream = make_stream(Owner())

    async def read() -> None:
        with pytest.raises(RequestAbortedError):
            await anext(stream)

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            stream.close()


async def test_two_readers_at_once_are_refused() -> None:
    owner = Owner()
    stream = make_stream(owner)

    async def read() -> None:
        assert (await anext(stream)).text == "a"

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(anyio.BusyResourceError):
                await anext(stream)
            assert owner.abandoned == []  # the first one goes on
            stream.deliver(item("a"))
    stream.close()


async def test_a_reader_that_always_finds_something_lets_others_run() -> None:
    stream = make_stream(Owner(), StreamCredit(1000))
    for _ in range(100):
        stream.deliver(item("a"))
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(100):
            await anext(stream)
        tasks.cancel_scope.cancel()
    assert others > 10
    stream.close()


async def test_waiting_in_another_event_loop_is_refused() -> None:
    owner = Owner()
    stream = make_stream(owner)
    stream.deliver(item("a"))
    owner.here = False
    assert (await anext(stream)).text == "a"  # it is there: nothing to wait for
    for read in (stream.wait, stream.__anext__):
        with anyio.fail_after(5), pytest.raises(EngineClosedError, match="another event loop"):
            await read()
    owner.here = True
    stream.deliver(item("b", end=True))
    owner.here = False
    assert [piece.text async for piece in stream] == ["b"]
    assert not owner.abandoned


async def test_taking_what_is_there() -> None:
    credit = StreamCredit(4)
    stream = make_stream(Owner(), credit)
    assert stream.take(9) == []
    stream.deliver(item("a", "b"))
    stream.deliver(item("c"))
    assert [out.text for out in stream.take(1) or ()] == ["a"]
    assert [out.text for out in stream.take(9) or ()] == ["b", "c"]
    assert credit.read == 2
    assert stream.take(9) == []
    stream.deliver(item("d", end=True))
    assert [out.text for out in stream.take(9) or ()] == ["d"]
    assert stream.take(9) is None
    assert (await stream).text == "abcd"


async def test_taking_gives_the_pieces_before_an_error() -> None:
    stream = make_stream(Owner())
    stream.deliver(item("a"))
    stream.end(RequestFailedError("broken"))
    assert [out.text for out in stream.take(9) or ()] == ["a"]
    for _ in range(2):
        with pytest.raises(RequestFailedError, match="broken"):
            stream.take(9)


async def test_a_wait_can_be_interrupted() -> None:
    stream = make_stream(Owner())
    stream.interrupt()  # nobody waits: nothing happens
    async with anyio.create_task_group() as group:
        group.start_soon(stream.wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            stream.take(1)
        stream.interrupt()
    assert stream.take(1) == []
    stream.close()
