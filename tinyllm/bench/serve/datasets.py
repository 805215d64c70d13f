"""`make_samples`: the conversations of a dataset, from its options."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tinyllm.bench.serve import synthetic
from tinyllm.bench.serve.client import Client
from tinyllm.bench.serve.files import Talk, read_burstgpt, read_custom, read_oasst1, read_sharegpt
from tinyllm.bench.serve.prompts import (
    Counter,
    IdPrompts,
    PromptMaker,
    TextPrompts,
    local_counter,
    server_counter,
)
from tinyllm.bench.serve.samples import Sample, Turn
from tinyllm.bench.serve.settings import DatasetOptions

__all__ = ["make_samples", "shares_prompts"]

CUSTOM_OUTPUT_TOKENS: Final = 256
"""Of a line that does not say."""
SHORTEST_TEXT: Final = 4
"""Tokens of a question or an answer; conversations with shorter ones are left out, as usual for ShareGPT."""
_MAKERS: Final = {
    "random": synthetic.random_prompts,
    "prefix_repetition": synthetic.prefix_repetition,
    "mixed": synthetic.mixed,
    "multi-turn": synthetic.multi_turn,
}
_READERS: Final[dict[str, Callable[[Path], Iterator[Talk]]]] = {
    "sharegpt": read_sharegpt,
    "oasst1": read_oasst1,
}


async def make_samples(options: DatasetOptions, client: Client) -> list[Sample]:
    """Return ``num_prompts + num_warmups`` conversations, or as many as a file has.

    The same options give the same. ``client`` reaches the server whose tokenizer counts, unless the options
    name another. Raises `ConfigError`, `ArtifactError` for the tokenizer, `OSError` for the file.
    """
    options.check()
    count = options.num_prompts + options.num_warmups
    rng = random.Random(f"{options.dataset_name}/{options.seed}/{options.window}")  # noqa: S311  no secret
    if options.dataset_name == "custom":
        return _custom(options, count)
    counter = local_counter(options.tokenizer) if options.tokenizer else server_counter(client)
    if options.dataset_name in _READERS:
        return await _talks(options, counter, rng, count)
    maker: PromptMaker = IdPrompts(options.vocab_size) if options.vocab_size else TextPrompts(counter)
    if options.dataset_name == "burstgpt":
        return await synthetic.of_trace(_trace(options, count), options, maker, rng)
    return await _MAKERS[options.dataset_name](options, maker, rng, count)


def shares_prompts(options: DatasetOptions) -> bool:
    """Return whether its prompts have much in common, so that a prefix cache is meant to know them."""
    several_turns = options.dataset_name == "multi-turn" or (options.turns or 1) > 1
    return several_turns or options.dataset_name == "prefix_repetition" or options.random_prefix_len > 0


def _trace(options: DatasetOptions, count: int) -> list[synthetic.TraceRow]:
    """Return a window; windows do not overlap, as the warm-ups of each are part of it."""
    start = options.window * count
    if options.dataset_path is not None:
        return read_burstgpt(options.dataset_path, start, count)
    rng = random.Random(f"burstgpt/{options.seed}")  # noqa: S311  no secret
    return synthetic.burstgpt_like(options, rng, start + count)[start:]


def _custom(options: DatasetOptions, count: int) -> list[Sample]:
    samples = []
    for row, _ in zip(read_custom(options.path), range(count), strict=False):
        tokens = options.output_len or row.output_tokens or CUSTOM_OUTPUT_TOKENS
        samples.append(Sample((Turn(row.prompt, tokens),), row.label, row.timestamp))
    return samples


async def _talks(options: DatasetOptions, counter: Counter, rng: random.Random, count: int) -> list[Sample]:
    talks = list(_READERS[options.dataset_name](options.path))
    rng.shuffle(talks)
    samples: list[Sample] = []
    for talk in talks:
        if len(samples) == count:
            break
        if sample := await _talk(talk, options, counter):
            samples.append(sample)
    return samples


async def _talk(talk: Talk, options: DatasetOptions, counter: Counter) -> Sample | None:
    """Return the first turns of a conversation; None if one is too short, or its question too long."""
    turns, first = [], 0
    for question, answer in talk[: options.turns or 1]:
        asked, answered = await counter(question), await counter(answer)
        if min(asked, answered) < SHORTEST_TEXT or asked > options.max_input_len:
            return None
        first = first or asked
        turns.append(Turn(question, options.output_len or min(answered, options.max_output_len)))
    return Sample(tuple(turns), synthetic.length_label(first, options))
