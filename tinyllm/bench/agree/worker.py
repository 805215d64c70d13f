"""Another engine, in a process and an environment of its own: run as a script, without tinyllm.

    python worker.py transformers|llama.cpp|vllm < job.json

A job is ``{"model", "dtype", "threads", "max_tokens", "prompts"}``, prompts being lists of token ids. Answers
are lines of JSON: what the engine is, then one line for each prompt, completed alone, greedily, and past any
end of sequence: ``{"token_ids", "runners_up", "margins"}``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

Step = tuple[int, int, float]
"""The chosen token, the second best, and the difference of their logits."""
Complete = Callable[[list[int], int], Iterator[Step]]
"""From a prompt and a number of tokens to the steps of its answer."""


def main() -> None:
    """Do the job on standard input."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not belong among the answers
    job = json.load(sys.stdin)
    version, complete = LOADERS[sys.argv[1]](job)
    print(json.dumps({"version": version}), file=out, flush=True)
    for prompt in job["prompts"]:
        token_ids, runners_up, margins = zip(*complete(prompt, job["max_tokens"]), strict=True)
        answer = {"token_ids": token_ids, "runners_up": runners_up, "margins": margins}
        print(json.dumps(answer), file=out, flush=True)


def load_transformers(job: dict[str, Any]) -> tuple[str, Complete]:
    """Hugging Face transformers: one forward pass for each token, with its own cache."""
    import torch
    import transformers

    torch.set_num_threads(job["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, job["dtype"])
    ).eval()

    @torch.inference_mode()
    def complete(prompt: list[int], max_tokens: int) -> Iterator[Step]:
        new, cache = prompt, None
        for _ in range(max_tokens):
            output = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
            values, ids = output.logits[0, -1].float().topk(2)
            yield int(ids[0]), int(ids[1]), float(values[0] - values[1])
            new, cache = [int(ids[0])], output.past_key_values

    return transformers.__version__, complete


def load_llamacpp(job: dict[str, Any]) -> tuple[str, Complete]:
    """llama.cpp, through llama-cpp-python."""
    import llama_cpp
    import numpy as np

    longest = max(map(len, job["prompts"])) + job["max_tokens"]
    threads = job["threads"]
    llama = llama_cpp.Llama(
        job["model"], n_ctx=longest, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def complete(prompt: list[int], max_tokens: int) -> Iterator[Step]:
        llama.reset()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)
        new = prompt
        for _ in range(max_tokens):
            llama.eval(new)
            logits = np.ctypeslib.as_array(
                llama_cpp.llama_get_logits_ith(llama.ctx, -1), shape=(llama.n_vocab(),)
            )
            second, first = logits.argpartition(-2)[-2:]
            if logits[first] < logits[second]:
                first, second = second, first
            yield int(first), int(second), float(logits[first] - logits[second])
            new = [int(first)]

    return llama_cpp.__version__, complete


def load_vllm(job: dict[str, Any]) -> tuple[str, Complete]:
    """vLLM, on the CPU where that is what is installed."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{job['threads'] - 1}")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    import vllm  # reads them

    longest = max(map(len, job["prompts"])) + job["max_tokens"]
    llm = vllm.LLM(
        job["model"], dtype=job["dtype"], max_model_len=longest, max_num_seqs=1, enforce_eager=True
    )

    def complete(prompt: list[int], max_tokens: int) -> Iterator[Step]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
        (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        for token_id, logprobs in zip(output.outputs[0].token_ids, output.outputs[0].logprobs, strict=True):
            others = {other: each.logprob for other, each in logprobs.items() if other != token_id}
            runner_up = max(others, key=others.__getitem__)
            yield token_id, runner_up, logprobs[token_id].logprob - others[runner_up]

    return vllm.__version__, complete


LOADERS: dict[str, Callable[[dict[str, Any]], tuple[str, Complete]]] = {
    "transformers": load_transformers,
    "llama.cpp": load_llamacpp,
    "vllm": load_vllm,
}

if __name__ == "__main__":
    main()
