"""A plain script, without async: a batch of prompts with a progress bar.

python examples/sync_script.py [MODEL]
"""

from __future__ import annotations

import sys

from tinyllm import Engine, SamplingParams

PROMPTS = ["Once upon a time", "The best thing about Python is", "To make tea, first"]


def main(model: str | None = None) -> None:
    with Engine(model=model, max_model_len=512) as engine:
        for prompt, answer in zip(
            PROMPTS, engine.generate(PROMPTS, SamplingParams(max_tokens=20, seed=1)), strict=True
        ):
            print(f"{prompt}{answer.text}  [{answer.finish_reason}]")


if __name__ == "__main__":
    main(*sys.argv[1:2])
