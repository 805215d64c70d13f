"""Every way to end a request early. Each frees its KV blocks within one step.

python examples/cancel_and_timeouts.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys

from tinyllm import AsyncEngine, RequestAbortedError, RequestTimeoutError, SamplingParams

LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)


async def leave_the_loop(engine: AsyncEngine) -> None:
    async with engine.generate("Count: one, two,", LONG) as stream:
        async for piece in stream:
            if piece.token_ids:
                break
    print("left the loop: the request was aborted")


async def cancel_the_task(engine: AsyncEngine) -> None:
    async def collect() -> None:
        await engine.generate("Count: one, two,", LONG)

    task = asyncio.create_task(collect())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    print("cancelled the task: the request was aborted")


async def set_a_timeout(engine: AsyncEngine) -> None:
    try:
        await engine.generate("Count: one, two,", LONG, timeout=0.2)
    except RequestTimeoutError as error:
        print(f"timeout: {error}")


async def abort_by_id(engine: AsyncEngine) -> None:
    stream = engine.generate("Count: one, two,", LONG, request_id="my-request")
    engine.abort("my-request")
    try:
        await stream
    except RequestAbortedError as error:
        print(f"abort: {error}")


async def main(model: str | None = None) -> None:
    async with AsyncEngine(model=model, max_model_len=1024) as engine:
        await leave_the_loop(engine)
        await cancel_the_task(engine)
        await set_a_timeout(engine)
        await abort_by_id(engine)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
