"""A run as lines of text that are also Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tinyllm.bench.serve.metrics import LATENCIES, percentile_name
from tinyllm.bench.serve.records import RequestRecord, RunResult
from tinyllm.bench.table import markdown_table

__all__ = ["result_lines"]


def result_lines(
    result: RunResult,
    *,
    metrics: Sequence[str] = LATENCIES,
    percentiles: Sequence[float] = (99.0,),
) -> Iterator[str]:
    """Yield the figures of a run; ``metrics`` of `LATENCIES` and ``percentiles`` say which latencies."""
    summary, target, arrivals = result.summary, result.metadata["target"], result.metadata["arrivals"]
    yield f"{target['model']} at {target['base_url']}, {target['endpoint']}, {_arrivals(arrivals)}"
    yield ""
    yield from markdown_table(("", "value"), list(_totals(summary)))
    yield ""
    yield from _latencies(summary, metrics, percentiles)
    for label, figures in summary["by_label"].items():
        yield ""
        yield f"{label or 'without a label'}: {figures['completed']} of {figures['requests']} requests"
        yield from _latencies(figures, metrics, percentiles)
    yield ""
    yield from _errors(result.requests)
    yield _client(result.client_lag)
    yield from (f"warning: {warning}" for warning in result.warnings)


def _arrivals(arrivals: dict[str, Any]) -> str:
    rate, most = arrivals["request_rate"], arrivals["max_concurrency"]
    bound = f", at most {most} at once" if most else ""
    match arrivals["kind"]:
        case "closed":
            return f"closed loop of {most}"
        case "trace":
            return f"trace at {'its own rate' if rate == 'inf' else f'{rate:g} requests/s'}{bound}"
        case "open":
            return ("all at once" if rate == "inf" else f"{rate:g} requests/s") + bound
        case ramp:
            ends = f"{arrivals['ramp_up_start_rps']:g} to {arrivals['ramp_up_end_rps']:g}"
            return f"{ramp} ramp, {ends} requests/s{bound}"


def _totals(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests completed", f"{summary['completed']:,}"
    yield "requests failed", f"{summary['failed']:,}"
    for kind, count in sorted(summary["errors"].items()):
        yield f"- {kind}", f"{count:,}"
    yield "duration, s", f"{summary['duration']:,.2f}"
    yield "most in flight", f"{summary['peak_in_flight']:,}"
    yield "prompt tokens", f"{summary['prompt_tokens']:,}"
    if summary["cached_share"] is not None:
        yield "- of them cached", f"{summary['cached_share']:.1%}"
    yield "output tokens", f"{summary['output_tokens']:,}"
    yield "requests/s", _number(summary["request_throughput"])
    yield "output tokens/s", _number(summary["output_throughput"])
    yield "total tokens/s", _number(summary["total_token_throughput"])
    if limits := summary["limits_ms"]:
        within = ", ".join(f"{name} {limit:g} ms" for name, limit in limits.items())
        yield f"good ({within}), requests/s", _number(summary["goodput"])
        yield "- of all requests", f"{summary['good_ratio']:.1%}"


def _latencies(
    figures: dict[str, Any], metrics: Sequence[str], percentiles: Sequence[float]
) -> Iterator[str]:
    shown = ["mean", "median", *map(percentile_name, percentiles)]
    rows = []
    for name in metrics:
        values = figures[f"{name}_ms"]
        rows.append((name.upper(), *("" if values is None else f"{values[key]:,.2f}" for key in shown)))
    return markdown_table(("ms", *shown), rows)


def _errors(requests: Sequence[RequestRecord]) -> Iterator[str]:
    """Yield an example of each kind of error."""
    examples = {record.error: record.message for record in reversed(requests) if record.error}
    yield from (f"{kind}: {message}" for kind, message in sorted(examples.items()))


def _client(lag: dict[str, Any]) -> str:
    sent = f", requests sent late by p99 {lag['send_p99_ms']:.2f} ms" if "send_p99_ms" in lag else ""
    return (
        f"this client: lag p50 {lag['p50_ms']:.2f} ms, p99 {lag['p99_ms']:.2f}, max {lag['max_ms']:.2f}"
        f"{sent}; {lag['cpu_share']:.0%} of a CPU"
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
