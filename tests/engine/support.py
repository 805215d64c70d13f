"""What tests of a whole engine look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio

from tinyllm import AsyncEngine, TokenStream
from tinyllm.engine.core import EngineCore
from tinyllm.engine.executor import Call

T = TypeVar("T")


async def on_thread(engine: AsyncEngine, function: Callable[[EngineCore], T]) -> T:
    """Call a function on the executor thread, between two steps."""
    done = anyio.Event()
    results: list[T] = []

    def call(core: EngineCore) -> None:
        results.append(function(core))
        engine._bridge.post(done.set)

    engine._executor.mailbox.put(Call(call))
    with anyio.fail_after(20):
        await done.wait()
    return results[0]


async def num_used_blocks(engine: AsyncEngine) -> int:
    """Return how many KV blocks requests hold."""
    return await on_thread(engine, lambda core: core.kv.num_blocks - core.kv.num_free_blocks)


async def wait_stalled(engine: AsyncEngine, requests: int = 1) -> None:
    """Wait until so many answers wait for their reader."""
    with anyio.fail_after(20):
        while await on_thread(engine, lambda core: core.scheduler.num_stalled) < requests:
            await anyio.lowlevel.checkpoint()


async def wait_idle(engine: AsyncEngine, seconds: float = 20) -> None:
    """Wait until every accepted request has ended."""
    with anyio.fail_after(seconds):
        await engine._table.wait_empty()


async def read_all(stream: TokenStream) -> str:
    """Read a stream to its end, which must come soon."""
    with anyio.fail_after(20):
        return "".join([piece.text async for piece in stream])


def metric(engine: AsyncEngine, name: str, **labels: str) -> float:
    """Return a metric's value, summed over all labels but those given."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    lines = [line for line in engine.metrics_text().splitlines() if line.startswith(f"tinyllm:{name}{{")]
    return sum(float(line.split()[-1]) for line in lines if all(label in line for label in wanted))
