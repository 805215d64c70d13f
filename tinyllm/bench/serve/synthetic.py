"""Datasets that are made: random prompts, shared beginnings, mixtures, conversations, and a bursty trace."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from tinyllm.bench.serve.prompts import PromptMaker
from tinyllm.bench.serve.samples import Sample, Turn
from tinyllm.bench.serve.settings import DatasetOptions
from tinyllm.errors import ConfigError

__all__ = [
    "TraceRow",
    "burstgpt_like",
    "length_label",
    "mixed",
    "multi_turn",
    "of_trace",
    "prefix_repetition",
    "random_prompts",
]

_KIND: Final = re.compile(r"([\w-]+)=(\d+(?:\.\d+)?):(\d+)x(\d+)", re.ASCII)
DEFAULT_TURNS: Final = 4
ZIPF: Final = 1.0
"""Exponent of the prompts' lengths in `burstgpt_like`."""
SHORTEST: Final = 4
OUTPUT_SIGMA: Final = 0.8
"""Of the logarithm of the answers' lengths in `burstgpt_like`: the longest tenth is 2.8 times the median."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A request of a trace, without its text."""

    timestamp: float
    prompt_tokens: int
    output_tokens: int


async def random_prompts(
    options: DatasetOptions, maker: PromptMaker, rng: random.Random, count: int
) -> list[Sample]:
    """Random prompts, of fixed lengths or of lengths around them."""
    beginning = await maker.make(options.random_prefix_len, rng) if options.random_prefix_len else ""
    samples = []
    for _ in range(count):
        tokens = options.random_prefix_len + _around(options.random_input_len, options, rng)
        prompt = await maker.make(tokens, rng, beginning)
        turn = Turn(prompt, _around(options.random_output_len, options, rng))
        samples.append(Sample((turn,), length_label(tokens, options)))
    return samples


async def prefix_repetition(
    options: DatasetOptions, maker: PromptMaker, rng: random.Random, count: int
) -> list[Sample]:
    """Prompts in groups that share their beginning, the groups mixed up."""
    length = options.prefix_repetition_prefix_len
    beginnings = [await maker.make(length, rng) for _ in range(options.prefix_repetition_num_prefixes)]
    groups = [place % len(beginnings) for place in range(count)]
    rng.shuffle(groups)
    samples = []
    for group in groups:
        tokens = length + options.prefix_repetition_suffix_len
        prompt = await maker.make(tokens, rng, beginnings[group])
        turn = Turn(prompt, options.prefix_repetition_output_len)
        samples.append(Sample((turn,), length_label(tokens, options)))
    return samples


async def mixed(options: DatasetOptions, maker: PromptMaker, rng: random.Random, count: int) -> list[Sample]:
    """Several kinds of request at once, each drawn with its weight."""
    kinds = [_kind(text) for text in options.mix]
    samples = []
    for label, _, tokens, output in rng.choices(kinds, [weight for _, weight, _, _ in kinds], k=count):
        samples.append(Sample((Turn(await maker.make(tokens, rng), output),), label))
    return samples


async def multi_turn(
    options: DatasetOptions, maker: PromptMaker, rng: random.Random, count: int
) -> list[Sample]:
    """Conversations; with a prefix length, all begin alike, as with a long system prompt."""
    beginning = await maker.make(options.random_prefix_len, rng) if options.random_prefix_len else ""
    samples = []
    for _ in range(count):
        turns = []
        for number in range(options.turns or DEFAULT_TURNS):
            tokens = _around(options.random_input_len, options, rng)
            start = beginning if number == 0 else ""
            prompt = await maker.make(tokens + (options.random_prefix_len if number == 0 else 0), rng, start)
            turns.append(Turn(prompt, _around(options.random_output_len, options, rng)))
        samples.append(Sample(tuple(turns)))
    return samples


def burstgpt_like(options: DatasetOptions, rng: random.Random, count: int) -> list[TraceRow]:
    """Return a trace like BurstGPT's (Wang et al., 2024, arXiv:2401.17644), by the model its authors give.

    They model arrivals with a gamma distribution and prompt lengths with Zipf's law. The parameters here are
    not theirs: gaps of mean 1 second and shape ``burstgpt_burstiness``, exponent 1, and answers that are
    log-normal, with an eighth of ``max_output_len`` as median. Lengths end at the options' maxima. A shorter
    trace of the same seed is the beginning of a longer one.
    """
    lengths = range(min(SHORTEST, options.max_input_len), options.max_input_len + 1)
    weights = list(accumulate(length**-ZIPF for length in lengths))
    shape, median = options.burstgpt_burstiness, max(1.0, options.max_output_len / 8)
    rows, now = [], 0.0
    for _ in range(count):
        prompt = rng.choices(lengths, cum_weights=weights)[0]
        output = round(median * rng.lognormvariate(0, OUTPUT_SIGMA))
        rows.append(TraceRow(now, prompt, min(max(1, output), options.max_output_len)))
        now += rng.gammavariate(shape, 1 / shape)
    return rows


async def of_trace(
    rows: Sequence[TraceRow], options: DatasetOptions, maker: PromptMaker, rng: random.Random
) -> list[Sample]:
    """Give a trace's requests random texts of their lengths, clipped to the options' maxima."""
    samples = []
    for row in rows:
        tokens = min(max(1, row.prompt_tokens), options.max_input_len)
        turn = Turn(await maker.make(tokens, rng), min(max(1, row.output_tokens), options.max_output_len))
        samples.append(Sample((turn,), length_label(tokens, options), row.timestamp))
    return samples


def _around(length: int, options: DatasetOptions, rng: random.Random) -> int:
    spread = options.random_range_ratio * length
    return max(1, rng.randint(round(length - spread), round(length + spread)))


def length_label(tokens: int, options: DatasetOptions) -> str:
    """Return the label of a prompt of so many tokens."""
    return "long" if tokens >= options.long_from else "short"


def _kind(text: str) -> tuple[str, float, int, int]:
    match = _KIND.fullmatch(text)
    if match is None or float(match[2]) == 0 or int(match[3]) < 1 or int(match[4]) < 1:
        raise ConfigError(
            f"--mix takes LABEL=WEIGHT:PROMPTxOUTPUT, such as short=9:64x64 (got {text[:40]!r})"
        )
    return match[1], float(match[2]), int(match[3]), int(match[4])
