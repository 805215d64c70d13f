"""Worker: tinyllm, through its asyncio interface.

Like the others it is asked for throughput alone: prompts are computed first, whatever answers wait.

python -m benches.peers.tinyllm_engine CHECKPOINT DTYPE
"""

from __future__ import annotations

import asyncio
import os
import sys

from benches.peers.worker import Prompts, serve
from tinyllm import AsyncEngine, SamplingParams


def main() -> None:
    """Serve measurements."""
    model, dtype = sys.argv[1:]
    threads = int(os.environ["BENCH_THREADS"]) if "BENCH_THREADS" in os.environ else None
    engine = AsyncEngine(
        model=model,
        dtype=dtype,
        enable_prefix_caching=False,
        max_prefill_slowdown=0,
        num_threads=threads,
        progress=False,
    )

    async def complete(prompts: Prompts, output_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        streams = [engine.generate(prompt, params) for prompt in prompts]
        results = await asyncio.gather(*(stream.result() for stream in streams))
        if any(len(result.token_ids) != output_tokens for result in results):
            raise RuntimeError("an answer is too short")

    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            serve(
                "tinyllm",
                engine.info.vocab_size,
                lambda prompts, output_tokens: runner.run(complete(prompts, output_tokens)),
                dtype=engine.info.dtype,
                attention=engine.info.attention_backend,
            )
        finally:
            runner.run(engine.aclose())


if __name__ == "__main__":
    main()
