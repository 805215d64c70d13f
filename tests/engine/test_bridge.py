from __future__ import annotations

import asyncio
import threading

import anyio
import pytest
import trio

from tinyllm.engine.bridge import Bridge


@pytest.mark.anyio
async def test_posts_from_a_thread_run_on_the_loop_in_order() -> None:
    bridge = Bridge()
    here = threading.get_ident()
    got: list[tuple[int, int]] = []
    done = anyio.Event()

    def post_all() -> None:
        for number in range(100):
            assert bridge.post(lambda n: got.append((n, threading.get_ident())), number)
        assert bridge.post(done.set)

    threading.Thread(target=post_all).start()
    with anyio.fail_after(20):
        await done.wait()
    assert got == [(number, here) for number in range(100)]


@pytest.mark.anyio
async def test_posting_does_not_wait_for_the_loop() -> None:
    bridge = Bridge()
    done = anyio.Event()
    thread = threading.Thread(target=bridge.post, args=(done.set,))
    thread.start()
    thread.join(20)  # the loop is blocked here, and the post returns all the same
    assert not thread.is_alive()
    assert not done.is_set()
    with anyio.fail_after(20):
        await done.wait()


@pytest.mark.anyio
async def test_calls_come_later_and_can_be_called_off() -> None:
    bridge = Bridge()
    got: list[str] = []
    done = anyio.Event()
    bridge.call_later(1e300, got.append, "at the end of time")
    never = bridge.call_later(0.01, got.append, "called off")

    def late() -> None:
        got.append("late")
        done.set()

    bridge.call_later(0.02, late)
    bridge.call_later(-1.0, got.append, "soon")
    never()
    never()
    with anyio.fail_after(20):
        await done.wait()
    assert got == ["soon", "late"]


def test_posting_to_a_closed_asyncio_loop_says_so() -> None:
    async def make() -> Bridge:
        return Bridge()

    assert asyncio.run(make()).post(print) is False


def test_posting_to_a_finished_trio_run_says_so() -> None:
    async def make() -> Bridge:
        return Bridge()

    assert trio.run(make).post(print) is False


def test_there_must_be_a_loop() -> None:
    with pytest.raises(anyio.NoEventLoopError):
        Bridge()


def test_it_knows_its_own_loop() -> None:
    async def make() -> Bridge:
        bridge = Bridge()
        assert bridge.is_here()
        return bridge

    bridge = asyncio.run(make())
    assert not bridge.is_here()

    async def elsewhere() -> bool:
        return bridge.is_here()

    assert not asyncio.run(elsewhere())
