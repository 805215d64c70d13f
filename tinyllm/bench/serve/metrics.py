"""The figures of a run, from its records.

::

    {"duration": s, "requests": n, "completed": n, "failed": n, "errors": {kind: n},
     "request_throughput", "output_throughput", "total_token_throughput": per second,
     "prompt_tokens", "output_tokens", "cached_tokens", "cached_share", "without_usage": n,
     "peak_in_flight": n, "good": n, "good_ratio": of all requests, "goodput": good ones a second,
     "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "delay_ms":
         {"count", "mean", "std", "min", "max", "median", "p50", "p90", ...} or None,
     "by_label": {label: {"requests", "completed", "good_ratio", "ttft_ms", ...}}}

Latencies are of completed requests alone; a failed one counts in ``failed``, ``errors`` and ``good_ratio``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tinyllm.bench.serve.records import Limits, RequestRecord
from tinyllm.bench.stats import percentile

__all__ = ["LATENCIES", "PERCENTILES", "percentile_name", "summarize"]

LATENCIES: Final = ("ttft", "tpot", "itl", "e2el")
PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0)
_DIGITS: Final = 6


def summarize(
    requests: Sequence[RequestRecord],
    duration: float,
    *,
    limits: Limits | None = None,
    percentiles: Iterable[float] = PERCENTILES,
) -> dict[str, Any]:
    """Return the figures of a run of ``duration`` seconds. Without limits every completed request is good."""
    limits = limits or Limits()
    percents = sorted({*PERCENTILES, *percentiles})
    done = [record for record in requests if record.ok]
    prompt_tokens = sum(record.prompt_tokens or 0 for record in done)
    output_tokens = sum(record.output_tokens or 0 for record in done)
    good = sum(record.good(limits) for record in requests)
    names = sorted({record.label for record in requests})
    return {
        "duration": round(duration, _DIGITS),
        "requests": len(requests),
        "completed": len(done),
        "failed": len(requests) - len(done),
        "errors": dict(Counter(record.error or "unfinished" for record in requests if not record.ok)),
        "request_throughput": _rate(len(done), duration),
        "output_throughput": _rate(output_tokens, duration),
        "total_token_throughput": _rate(prompt_tokens + output_tokens, duration),
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        **_cache(done),
        "without_usage": sum(not record.usage for record in done),
        "peak_in_flight": _peak_in_flight(requests),
        "limits_ms": limits.to_json(),
        "good": good,
        "good_ratio": good / len(requests) if requests else None,
        "goodput": _rate(good, duration),
        **_latencies(done, percents),
        "by_label": {
            name: _of_label([record for record in requests if record.label == name], limits, percents)
            for name in (names if len(names) > 1 else ())
        },
    }


def percentile_name(percent: float) -> str:
    """Return the key of a percentile, such as ``p99`` or ``p99.9``."""
    return f"p{percent:g}"


def _of_label(requests: Sequence[RequestRecord], limits: Limits, percents: Sequence[float]) -> dict[str, Any]:
    done = [record for record in requests if record.ok]
    return {
        "requests": len(requests),
        "completed": len(done),
        "good_ratio": sum(record.good(limits) for record in requests) / len(requests),
        **_latencies(done, percents),
    }


def _latencies(done: Sequence[RequestRecord], percents: Sequence[float]) -> dict[str, Any]:
    values: dict[str, list[float | None]] = {
        "ttft": [record.ttft for record in done],
        "tpot": [record.tpot for record in done],
        "itl": [gap for record in done for gap in record.gaps],
        "e2el": [record.e2el for record in done],
        "delay": [record.delay for record in done],
    }
    return {
        f"{name}_ms": _distribution([value * 1e3 for value in seconds if value is not None], percents)
        for name, seconds in values.items()
    }


def _distribution(values: Sequence[float], percents: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    figures = {
        "mean": statistics.fmean(ordered),
        "std": statistics.pstdev(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "median": percentile(ordered, 50),
        **{percentile_name(percent): percentile(ordered, percent) for percent in percents},
    }
    return {"count": len(ordered)} | {name: round(value, _DIGITS) for name, value in figures.items()}


def _cache(done: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return prompt tokens from the server's prefix cache; None if no answer says anything of it."""
    told = [record for record in done if record.cached_tokens is not None]
    cached = sum(record.cached_tokens or 0 for record in told)
    prompts = sum(record.prompt_tokens or 0 for record in told)
    return {
        "cached_tokens": cached if told else None,
        "cached_share": cached / prompts if prompts else None,
    }


def _peak_in_flight(requests: Sequence[RequestRecord]) -> int:
    changes = [(record.sent, 1) for record in requests if record.sent is not None]
    changes += [
        (record.finished, -1)
        for record in requests
        if record.finished is not None and record.sent is not None
    ]
    peak = now = 0
    for _, change in sorted(changes):  # at the same moment an end comes before a beginning
        now += change
        peak = max(peak, now)
    return peak


def _rate(count: float, duration: float) -> float | None:
    return round(count / duration, _DIGITS) if duration > 0 else None
