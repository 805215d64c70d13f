"""What every worker of the comparison does, without tinyllm: peers have environments of their own.

A worker loads a model, generates one token, and writes ``{"ready": ...}`` to standard output. Then it reads
one line for each measurement, ``BxPxN SEED``, and answers with one line of JSON. All measure alike:

* prefill: seconds of all B prompts of P tokens with one token out each;
* whole: seconds of the same with N tokens out. All tokens but the first of each answer took the difference.

Run by hand: ``echo "8x64x64 1" | python -m benches.peers.transformers_generate CHECKPOINT bfloat16``.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable

__all__ = ["Generate", "Prompts", "make_prompts", "serve"]

Prompts = list[list[int]]

Generate = Callable[[Prompts, int], None]
"""Complete every prompt by so many tokens: greedily, all at once, without an early end, and with no cache of
prompts seen before."""


def serve(engine: str, vocab_size: int, generate: Generate, **about: str) -> None:
    """Answer until standard input ends. ``about`` is what the results should say beside the engine's name."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not belong among the answers
    generate(make_prompts(1, 32, vocab_size, 0), 1)
    print(json.dumps({"ready": engine, **about}), file=out, flush=True)
    seen = set()
    for line in sys.stdin:
        workload, seed = line.split()
        batch, prompt_tokens, output_tokens = map(int, workload.split("x"))
        if workload not in seen:  # warm up
            seen.add(workload)
            generate(make_prompts(batch, prompt_tokens, vocab_size, -1), 2)
        prompts = make_prompts(batch, prompt_tokens, vocab_size, int(seed))
        prefill = _seconds(generate, prompts, 1)
        whole = _seconds(generate, prompts, output_tokens)
        answer = {
            "engine": engine,
            "workload": workload,
            "prefill_tok_s": batch * prompt_tokens / prefill,
            "decode_tok_s": batch * (output_tokens - 1) / (whole - prefill) if whole > prefill else None,
        }
        print(json.dumps(answer), file=out, flush=True)


def make_prompts(batch: int, prompt_tokens: int, vocab_size: int, seed: int) -> Prompts:
    """Return random token ids, the same for every engine."""
    rng = random.Random(seed)
    return [rng.choices(range(100, vocab_size - 500), k=prompt_tokens) for _ in range(batch)]


def _seconds(generate: Generate, prompts: Prompts, output_tokens: int) -> float:
    started = time.perf_counter()
    generate(prompts, output_tokens)
    return time.perf_counter() - started
