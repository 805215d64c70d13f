"""Worker: transformers' ``generate``, a static batch.

python -m benches.peers.transformers_generate CHECKPOINT DTYPE
"""

from __future__ import annotations

import os
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM

from benches.peers.worker import Prompts, serve


def main() -> None:
    """Serve measurements."""
    checkpoint, dtype = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", torch.get_num_threads())))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
    model.generation_config.eos_token_id = None  # no early end

    @torch.inference_mode()
    def generate(prompts: Prompts, output_tokens: int) -> None:
        input_ids = torch.tensor(prompts)
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=output_tokens,
            min_new_tokens=output_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        if output.shape[1] != input_ids.shape[1] + output_tokens:
            raise RuntimeError("an answer is too short")

    serve("transformers", model.config.vocab_size, generate, dtype=dtype, version=transformers.__version__)


if __name__ == "__main__":
    main()
