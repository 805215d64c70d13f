"""Many prompts at once, each answer printed as soon as it is ready.

    python examples/many_prompts.py [MODEL]

The engine refuses more than it is configured to hold (`EngineOverloadedError`), so a limiter keeps the
number of requests in flight below that; a long list needs no other care.
"""

from __future__ import annotations

import sys

import anyio

from tinyllm import AsyncEngine, SamplingParams

ANIMALS = ["cat", "dog", "owl", "fox", "bee", "cow", "hen", "bat", "rat", "pig"]


async def main(model: str | None = None) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, stop="\n")
    limiter = anyio.CapacityLimiter(64)

    async with AsyncEngine(model=model, max_model_len=512, max_num_seqs=16) as engine:

        async def complete(animal: str) -> None:
            async with limiter:
                answer = await engine.generate(f"A {animal} is an animal that", params)
            first = answer.metrics.time_to_first_token or 0.0
            print(f"{animal}: {answer.text.strip()}  [first token after {first:.3f} s]")

        async with anyio.create_task_group() as tasks:
            for animal in ANIMALS:
                tasks.start_soon(complete, animal)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
