"""An asyncio application that answers while it does other things.

    python examples/embed_in_asyncio.py [MODEL]

One engine serves every task of the application; tasks that ask at the same time share the model's steps.
"""

from __future__ import annotations

import asyncio
import sys

from tinyllm import AsyncEngine, SamplingParams

QUESTIONS = ["Name one planet.", "Name one animal.", "Name one colour."]


async def ask(engine: AsyncEngine, question: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    answer = await engine.chat([{"role": "user", "content": question}], params)
    print(f"{question} -> {answer.text.strip()}")


async def heartbeat() -> None:
    """Shows that the event loop stays free: the model runs on its own thread."""
    while True:
        print(".", end="", flush=True)
        await asyncio.sleep(0.2)


async def main(model: str | None = None) -> None:
    async with AsyncEngine(model=model, max_model_len=1024) as engine:
        beating = asyncio.create_task(heartbeat())
        await asyncio.gather(*(ask(engine, question) for question in QUESTIONS))
        beating.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
