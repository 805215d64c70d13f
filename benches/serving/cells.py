"""The loads of the serving study beside the trace: each a dataset, arrivals, and a guess of its length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions

ALONE, BESIDE = "short alone", "short beside long prefill"
PREFILL_RATE, DECODE_RATE = 1200.0, 300.0
"""Tokens a second, guessed for the forecast."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One load."""

    name: str
    prompt_tokens: int
    output_tokens: int
    requests: int
    concurrency: int | None = None
    """Of a closed loop; None for arrivals at a rate."""
    rate: float | None = None
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """Instead of random prompts of these lengths."""
    backend: str = "openai"

    def dataset_options(self, tokenizer: str, seed: int) -> DatasetOptions:
        """Return the prompts: the same for every server."""
        lengths = {"random_input_len": self.prompt_tokens, "random_output_len": self.output_tokens}
        warmups = self.concurrency or 4
        return DatasetOptions(
            **(self.dataset or lengths),
            num_prompts=self.requests,
            num_warmups=warmups,
            tokenizer=tokenizer,
            seed=seed,
        )

    def arrival_options(self) -> ArrivalOptions:
        """Return when they come."""
        if self.rate is None:
            return ArrivalOptions(max_concurrency=self.concurrency)
        return ArrivalOptions(request_rate=self.rate)

    def seconds(self) -> float:
        """Return about how long it takes."""
        if self.rate is not None:
            return self.requests / self.rate
        tokens = self.prompt_tokens / PREFILL_RATE + self.output_tokens / DECODE_RATE
        return self.requests * tokens * (1 + 4 / (self.concurrency or 1)) / 2


def cells(requests: int, rate: float, context: int) -> list[Cell]:
    """Return all loads, with so many requests each; ``rate`` is that of short requests beside long prefill.

    No prompt with its answer is longer than ``context`` (at least 128), of which a chat template takes some.
    """
    long_prompt, long_answer = min(1536, context * 3 // 4), min(384, context // 2)
    shared, own = min(512, context // 2), min(32, context // 8)
    prefixes = {
        "dataset_name": "prefix_repetition",
        "prefix_repetition_num_prefixes": 2,
        "prefix_repetition_prefix_len": shared,
        "prefix_repetition_suffix_len": own,
        "prefix_repetition_output_len": 32,
    }
    short = f"short=9:{min(32, context // 4)}x32"
    kinds = [short, f"long=1:{long_prompt}x8"]
    found = [
        *(
            Cell(f"closed {streams}x{prompt}x64", prompt, 64, max(streams * 2, requests // 2), streams)
            for streams, prompt in ((1, 32), (16, 128), (32, 64))
        ),
        Cell("short chat", 48, 64, requests, 4, backend="openai-chat"),
        Cell("medium chat", 256, 128, requests, 4, backend="openai-chat"),
        Cell("long prefill", long_prompt, 8, requests, 4),
        Cell("long decode", 48, long_answer, requests, 4),
        Cell("shared prefix", own, 32, requests, 4, dataset=prefixes),
        Cell(ALONE, 32, 32, requests * 2, rate=rate, dataset={"dataset_name": "mixed", "mix": [short]}),
        Cell(
            BESIDE,
            32,
            32,
            requests * 2,
            rate=rate,
            dataset={"dataset_name": "mixed", "mix": kinds},
        ),
    ]
    return [cell for cell in found if cell.dataset or cell.prompt_tokens + cell.output_tokens + 32 <= context]
