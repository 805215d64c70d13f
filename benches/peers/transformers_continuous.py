"""Worker: transformers' continuous batching.

    python -m benches.peers.transformers_continuous CHECKPOINT DTYPE

One manager serves all measurements: starting one costs more than a small batch.
"""

from __future__ import annotations

import os
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from benches.peers.worker import Prompts, serve

CACHED_TOKENS = 40_960
PAGE_TOKENS = 32
BATCH_TOKENS = 2048
PATIENCE = 300.0


def main() -> None:
    """Serve measurements."""
    checkpoint, dtype = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", torch.get_num_threads())))
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()
    manager = model.init_continuous_batching(
        GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),  # no early end
        ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=CACHED_TOKENS // PAGE_TOKENS,
            max_batch_tokens=BATCH_TOKENS,
            allow_block_sharing=False,
            use_cuda_graph=False,
        ),
    )
    manager.start()

    def generate(prompts: Prompts, output_tokens: int) -> None:
        left = set(manager.add_requests(prompts, max_new_tokens=output_tokens))
        while left:
            output = manager.get_result(timeout=PATIENCE)
            if output is None:
                raise RuntimeError("continuous batching has stopped")
            if not output.is_finished():
                continue
            if len(output.generated_tokens) != output_tokens:
                raise RuntimeError("an answer is too short")
            left.discard(output.request_id)

    try:
        serve(
            "transformers continuous",
            model.config.vocab_size,
            generate,
            dtype=dtype,
            version=transformers.__version__,
        )
    finally:
        manager.stop(block=True, timeout=10)


if __name__ == "__main__":
    main()
