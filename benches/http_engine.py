"""The arm of benches/http.py without HTTP: the same engine, read by its own process's event loop.

Jobs come as lines of JSON on standard input; each is answered with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from tinyllm import AsyncEngine, SamplingParams


async def read(engine: AsyncEngine, prompt: list[int], tokens: int) -> int:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    count = 0
    async for piece in engine.generate(prompt, params):
        count += len(piece.token_ids)
    return count


async def serve(options: dict[str, Any]) -> None:
    async with AsyncEngine(progress=False, **options) as engine:
        print(json.dumps({"ready": True}), flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            job = json.loads(line)
            started = time.perf_counter()
            counts = await asyncio.gather(
                *(read(engine, job["prompt"], job["tokens"]) for _ in range(job["count"]))
            )
            seconds = time.perf_counter() - started
            print(json.dumps({"seconds": seconds, "tokens": sum(counts)}), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
