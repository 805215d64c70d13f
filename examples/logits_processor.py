"""A plain Python function that shapes what is sampled, for one request.

    python examples/logits_processor.py [MODEL]

It gets the token ids so far (prompt and output) and one row of logits, and returns the row to use. It runs
on the engine's thread: keep it short. If it raises, only its own request ends, with `RequestFailedError`.
"""

from __future__ import annotations

import asyncio
import sys

import torch

from tinyllm import AsyncEngine, SamplingParams


class ForbidRepeats:
    """No token that was already in the last few may come again."""

    def __init__(self, window: int) -> None:
        self.window = window

    def __call__(self, token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[token_ids[-self.window :]] = -torch.inf
        return logits


async def main(model: str | None = None) -> None:
    async with AsyncEngine(model=model, max_model_len=512) as engine:
        prompt = "very very very very"
        plain = SamplingParams(temperature=0, max_tokens=16)
        shaped = plain.model_copy(update={"logits_processors": (ForbidRepeats(window=24),)})
        for name, params in (("plain", plain), ("without repeats", shaped)):
            answer = await engine.generate(prompt, params)
            print(f"{name}: {answer.text!r}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:2]))
