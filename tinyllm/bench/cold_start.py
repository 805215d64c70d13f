"""A new process, from its start to its first token, and how much memory it takes under load."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from typing import Any

from tinyllm.bench.batch_run import run_batch
from tinyllm.bench.environment import peak_memory
from tinyllm.bench.workload import Workload
from tinyllm.config import EngineConfig
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.errors import TinyLLMError

__all__ = ["FIRST", "measure_cold_start"]

FIRST = Workload(1, 32, 2)
"""What gives the first token."""


def measure_cold_start(config: EngineConfig, workload: Workload) -> dict[str, Any]:
    """Start a process on ``config`` and have it run ``workload``; times in seconds, memory in bytes.

    The model's files are where they always are, so they are in the page cache if they were just read. The
    limit is what is allowed: 1.25 x weights + the KV cache as configured + 350 MB.
    """
    command = [sys.executable, "-m", "tinyllm.bench.cold_start"]
    request = json.dumps({"config": config.model_dump(mode="json"), "workload": str(workload)})
    started = time.perf_counter()
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        if child.stdin is None or child.stdout is None:  # never: both are pipes
            raise TinyLLMError("the process has no pipes")
        child.stdin.write(request)
        child.stdin.close()
        line = child.stdout.readline()
        first_token = time.perf_counter() - started
        rest = child.stdout.read()
    if child.returncode != 0 or not line:
        raise TinyLLMError("the process that measures a cold start failed; its message is above")
    report: dict[str, Any] = json.loads(rest)
    return {"first_token_seconds": first_token, "workload": str(workload)} | report


async def _run(config: EngineConfig, workload: Workload) -> dict[str, Any]:
    async with AsyncEngine(config) as engine:
        info = engine.info
        await run_batch(engine, FIRST.prompts(info.vocab_size, 0), 1)
        print("first token", flush=True)
        await run_batch(engine, workload.prompts(info.vocab_size, 0), workload.output_tokens)
        return {
            "load_seconds": info.load_seconds,
            "peak_memory_bytes": peak_memory(),
            "weight_bytes": info.weight_bytes,
            "kv_cache_bytes": info.kv_cache_bytes,
            "peak_memory_limit_bytes": round(1.25 * info.weight_bytes) + info.kv_cache_bytes + 350_000_000,
        }


def main() -> None:
    """Be the new process."""
    request = json.loads(sys.stdin.read())
    report = asyncio.run(_run(EngineConfig(**request["config"]), Workload.parse(request["workload"])))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
