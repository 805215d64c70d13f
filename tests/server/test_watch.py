from __future__ import annotations

import asyncio

import pytest

from tinyllm.server.watch import Watch

pytestmark = pytest.mark.asyncio


async def test_what_is_late_rings_and_what_is_quick_does_not() -> None:
    watch, late = Watch(), asyncio.Event()
    for _ in range(1000):
        with watch(0.05, late.set):
            await asyncio.sleep(0)
    assert not watch.rang
    with watch(0.05, late.set):
        await asyncio.wait_for(late.wait(), 5)
    assert watch.rang
    with watch(0.05, late.set):
        pass
    assert not watch.rang
    late.clear()
    with watch(0.05, late.set):  # after a pause the timer is set again
        await asyncio.wait_for(late.wait(), 5)
    watch.close()


async def test_many_uses_have_one_timer() -> None:
    loop = asyncio.get_running_loop()
    made = []

    class Counting(Watch):
        def __enter__(self) -> Watch:
            before = self._timer
            entered = super().__enter__()
            if self._timer is not before:
                made.append(self._timer)
            return entered

    watch = Counting()
    started = loop.time()
    while loop.time() < started + 0.1:
        with watch(10.0, made.clear):
            await asyncio.sleep(0)
    watch.close()
    assert len(made) == 1


async def test_it_does_not_ring_when_closed() -> None:
    watch, rings = Watch(), []
    with watch(0.001, lambda: rings.append(1)):
        watch.close()
        await asyncio.sleep(0.02)
    assert not rings
