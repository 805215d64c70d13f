"""What a reader of a run's figures should know before believing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tinyllm.bench.serve.records import RequestRecord

__all__ = ["warnings_of"]

MOSTLY: Final = 0.5
"""Of a prompt's tokens: more of them in the cache than chat templates and short words have in common."""


def warnings_of(
    requests: Sequence[RequestRecord], summary: Mapping[str, Any], *, ignore_eos: bool, shares_prompts: bool
) -> list[str]:
    """Return warnings, each a sentence."""
    return [*_cache_warnings(requests, summary, shares_prompts), *_token_warnings(requests, ignore_eos)]


def _cache_warnings(
    requests: Sequence[RequestRecord], summary: Mapping[str, Any], shares_prompts: bool
) -> Iterator[str]:
    if summary["cached_share"] is None and summary["completed"]:
        yield (
            "the server does not say how many prompt tokens its cache had: if it has served these prompts "
            "before (the same --seed), results are too good"
        )
    known = sum(_is_known(record) for record in requests)
    if known and not shares_prompts:
        yield (
            f"{known} of {len(requests)} prompts were mostly in the server's prefix cache: it has served "
            "them before, so results are too good; take another --seed, or reset its cache"
        )


def _is_known(record: RequestRecord) -> bool:
    return bool(record.ok and record.prompt_tokens) and (
        (record.cached_tokens or 0) > MOSTLY * (record.prompt_tokens or 0)
    )


def _token_warnings(requests: Sequence[RequestRecord], ignore_eos: bool) -> Iterator[str]:
    done = [record for record in requests if record.ok]
    if counted := sum(not record.usage for record in done):
        yield (
            f"{counted} of {len(done)} answers came without usage: their output tokens are the number of "
            "chunks, which may hold several tokens each, and their prompt tokens count as none"
        )
    short = sum((record.output_tokens or 0) < (record.asked_tokens or 0) for record in done)
    if ignore_eos and short:
        yield f"{short} of {len(done)} answers are shorter than asked: the server does not heed ignore_eos"
