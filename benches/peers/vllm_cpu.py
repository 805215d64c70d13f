"""Worker: vLLM's CPU build.

python -m benches.peers.vllm_cpu CHECKPOINT DTYPE
"""

from __future__ import annotations

import os
import sys

from benches.peers.worker import Prompts, serve


def main() -> None:
    """Serve measurements."""
    threads = int(os.environ.get("BENCH_THREADS", os.cpu_count() or 1))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    import vllm  # reads them
    from vllm import LLM, SamplingParams

    checkpoint, dtype = sys.argv[1:]
    llm = LLM(checkpoint, dtype=dtype, max_model_len=8192, enable_prefix_caching=False, max_num_seqs=64)

    def generate(prompts: Prompts, output_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(inputs, params, use_tqdm=False)
        if any(len(output.outputs[0].token_ids) != output_tokens for output in outputs):
            raise RuntimeError("an answer is too short")

    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    serve("vllm", vocab_size, generate, dtype=dtype, version=vllm.__version__)


if __name__ == "__main__":
    main()
