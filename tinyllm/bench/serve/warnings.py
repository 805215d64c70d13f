"""What a reader of a run's figures should know before believing them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tinyllm.bench.serve.records import RequestRecord

__all__ = ["warnings_of"]

MUCH_CACHED: Final = 0.05
"""Of prompt tokens; chat templates alone share a little."""


def warnings_of(
    requests: Sequence[RequestRecord], summary: Mapping[str, Any], *, ignore_eos: bool, shares_prompts: bool
) -> list[str]:
    """Return warnings, each a sentence."""
    return [*_cache_warnings(summary, shares_prompts), *_token_warnings(requests, ignore_eos)]


def _cache_warnings(summary: Mapping[str, Any], shares_prompts: bool) -> Iterator[str]:
    share = summary["cached_share"]
    if share is None and summary["completed"]:
        yield (
            "the server does not say how many prompt tokens its cache had: if it has served these prompts "
            "before (the same --seed), results are too good"
        )
    elif share is not None and share > MUCH_CACHED and not shares_prompts:
        yield (
            f"{share:.0%} of prompt tokens came from the server's prefix cache: it has served these prompts "
            "before, so results are too good; take another --seed, or reset its cache"
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
