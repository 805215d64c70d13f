"""`Workload`: what a benchmark asks for, spelled ``BxPxN``."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Final

from tinyllm.errors import ConfigError

__all__ = ["LATENCY", "THROUGHPUT", "Workload"]

_SPELLING: Final = re.compile(r"(\d+)x(\d+)x(\d+)(?:\+(shared|\d+))?", re.ASCII)
_OWN_TOKENS: Final = 16
"""What each prompt has after a shared beginning."""
_FIRST_ID: Final = 100
_LAST_IDS: Final = 500
"""Ids at both ends of a vocabulary may be special; prompts are drawn from between."""


@dataclass(frozen=True, slots=True)
class Workload:
    """``batch`` requests at once, each of ``prompt_tokens`` random tokens, with ``output_tokens`` tokens out.

    ``8x1024x32+shared``: the prompts have their first 1,024 tokens in common, and 16 more of their own; they
    are measured with that beginning in the prefix cache and without. ``8x64x256+4096``: while the 8 requests
    decode, a prompt of 4,096 tokens comes in between.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    shared: bool = False
    intruder: int = 0
    """Tokens of the prompt that comes in between; 0 is none."""

    @classmethod
    def parse(cls, text: str) -> Workload:
        """Read a workload as `__str__` writes it. Raises `ConfigError`."""
        match = _SPELLING.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text[:40]!r} is no workload: write BxPxN, requests x prompt tokens x output tokens, "
                "such as 8x64x64; BxPxN+shared shares the prompts' beginning, "
                "BxPxN+4096 adds a long prompt midway"
            )
        batch, prompt_tokens, output_tokens = (int(number) for number in match.groups()[:3])
        extra = match[4] or ""
        workload = cls(
            batch, prompt_tokens, output_tokens, extra == "shared", int(extra) if extra.isdecimal() else 0
        )
        if batch < 1 or prompt_tokens < 1 or output_tokens < 2 or str(workload) != text:
            raise ConfigError(
                f"{text!r} is no workload: at least one request, one prompt token and two output tokens"
            )
        return workload

    def __str__(self) -> str:
        extra = "+shared" if self.shared else f"+{self.intruder}" if self.intruder else ""
        return f"{self.batch}x{self.prompt_tokens}x{self.output_tokens}{extra}"

    @property
    def length(self) -> int:
        """Tokens of the longest request, prompt and output."""
        prompt = self.prompt_tokens + (_OWN_TOKENS if self.shared else 0)
        return max(prompt + self.output_tokens, self.intruder + 1)

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Return the prompts' token ids, which have nothing in common but what is shared."""
        rng = random.Random(f"{self}/{seed}")  # noqa: S311  no secret
        ids = ordinary_ids(vocab_size)
        if not self.shared:
            return [rng.choices(ids, k=self.prompt_tokens) for _ in range(self.batch)]
        beginning = rng.choices(ids, k=self.prompt_tokens)
        return [beginning + rng.choices(ids, k=_OWN_TOKENS) for _ in range(self.batch)]

    def intruding_prompt(self, vocab_size: int, seed: int) -> list[int]:
        """Return the token ids of the prompt that comes in between."""
        rng = random.Random(f"{self}/{seed}/intruder")  # noqa: S311  no secret
        return rng.choices(ordinary_ids(vocab_size), k=self.intruder)


def ordinary_ids(vocab_size: int) -> range:
    """Return the token ids that prompts are made of."""
    if vocab_size <= _FIRST_ID + _LAST_IDS:
        return range(vocab_size)
    return range(_FIRST_ID, vocab_size - _LAST_IDS)


THROUGHPUT: Final = tuple(
    Workload.parse(text)
    for text in (
        *("1x32x64", "4x32x256", "8x64x64", "16x128x64", "16x512x32", "32x64x32"),
        *("1x1024x16", "1x4096x16", "8x1024x32+shared"),
    )
)
"""What ``tinyllm bench throughput`` measures unless told otherwise."""

LATENCY: Final = tuple(
    Workload.parse(text) for text in ("1x32x64", "8x64x64", "16x128x64", "8x64x256+4096", "8x1024x32+shared")
)
"""What ``tinyllm bench latency`` measures unless told otherwise."""
