"""Worker: transformers' continuous batching. ``transformers_continuous.py CHECKPOINT DTYPE``"""

from __future__ import annotations

import os
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from worker import Prompts, serve


def main() -> None:
    """Serve measurements."""
    checkpoint, dtype = sys.argv[1:]
    torch.set_num_threads(int(os.environ.get("BENCH_THREADS", torch.get_num_threads())))
    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    ).eval()

    @torch.inference_mode()
    def generate(prompts: Prompts, output_tokens: int) -> None:
        config = GenerationConfig(
            max_new_tokens=output_tokens,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=0,
            use_cuda_graph=False,
        )
        outputs = model.generate_batch(inputs=prompts, generation_config=config, progress_bar=False)
        if any(len(output.generated_tokens) != output_tokens for output in outputs.values()):
            raise RuntimeError("an answer is too short")

    serve(
        "transformers continuous",
        model.config.vocab_size,
        generate,
        dtype=dtype,
        version=transformers.__version__,
    )


if __name__ == "__main__":
    main()
