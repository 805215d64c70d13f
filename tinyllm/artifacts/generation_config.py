"""``generation_config.json``: the model's own sampling defaults and end-of-sequence tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyllm.artifacts.json_file import Fields
from tinyllm.params import SamplingDefaults

__all__ = ["parse_sampling_defaults", "union_of_eos"]


def parse_sampling_defaults(
    values: Mapping[str, Any], *, file: str = "generation_config.json"
) -> SamplingDefaults:
    """Return the sampling defaults; an explicit ``do_sample: false`` is temperature 0.

    Raises `CheckpointError` naming the field.
    """
    fields = Fields(values, file)

    def number(name: str, minimum: float, maximum: float) -> float | None:
        return fields.number(name, minimum=minimum, maximum=maximum) if fields.has(name) else None

    temperature = number("temperature", 0, 1e6)
    return SamplingDefaults(
        temperature=temperature if fields.boolean("do_sample", True) else 0.0,
        top_p=number("top_p", 1e-9, 1),
        top_k=fields.integer("top_k", minimum=-1, maximum=2**31) if fields.has("top_k") else None,
        min_p=number("min_p", 0, 1),
        typical_p=number("typical_p", 1e-9, 1),
        repetition_penalty=number("repetition_penalty", 1e-6, 1e6),
    )


def union_of_eos(vocab_size: int, *sources: Fields) -> tuple[int, ...]:
    """Return the end-of-sequence ids of all sources, in order.

    Ids outside the vocabulary, which cut-down models inherit, are left out: they are never sampled.
    """
    ids = (token_id for source in sources for token_id in source.token_ids("eos_token_id"))
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id < vocab_size))
