"""A report of `tinyllm.bench.suite.run_suite` as lines of text that are also Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tinyllm.metrics import STEP_PARTS

__all__ = ["environment_line", "markdown_table", "report_lines"]


def report_lines(report: dict[str, Any], kind: str) -> Iterator[str]:
    """Yield the report: ``kind`` is throughput or latency, and says which columns come first."""
    model, calibration = report["model"], report["calibration"]
    paths = f"attention {model['attention_backend']}, layers {model['layers']}"
    yield f"{model['model']} in {model['dtype']}, {paths}"
    yield environment_line(report["environment"])
    products = _products(calibration)
    yield (
        f"this machine reads {calibration['bytes_per_second'] / 1e9:.1f} GB/s and multiplies "
        f"{calibration['flops'] / 1e9:.0f} GFLOP/s; matrix products of a step, ms by rows: {products}"
    )
    if "cold_start" in report:
        cold = report["cold_start"]
        yield (
            f"cold start to first token {cold['first_token_seconds']:.2f} s; peak memory in "
            f"{cold['workload']} {cold['peak_memory_bytes'] / 1e6:.0f} MB "
            f"(weights {cold['weight_bytes'] / 1e6:.0f}, KV cache {cold['kv_cache_bytes'] / 1e6:.0f}; "
            f"1.25 x weights + KV cache + 350 is {cold['peak_memory_limit_bytes'] / 1e6:.0f})"
        )
    yield ""
    tables = [_rates(report["results"]), _latencies(report["results"])]
    for table in tables if kind == "throughput" else reversed(tables):
        yield from table
        yield ""
    yield from _steps(report["results"])
    yield from _extras(report["results"])


def environment_line(environment: dict[str, Any]) -> str:
    """Return the environment in one line."""
    return (
        f"{environment['cpu']}, {environment['threads']} threads, torch {environment['torch']}, "
        f"commit {environment['commit']}, load {environment['load_average']}"
    )


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; all columns but the first are numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for number, row in enumerate((header, *rows)):
        first, *rest = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        yield "| " + " | ".join((first.strip().ljust(widths[0]), *rest)) + " |"
        if number == 0:
            yield (
                "|"
                + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
                + "|"
            )


def _rates(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    header = ("workload", "prefill tok/s", "of limit", "decode tok/s", "best", "of limit", "x products")
    rows = []
    for result in results:
        prefill, decode = result["of_limit"]["prefill"], result["decode_tok_s"]
        row = (
            result["workload"],
            f"{result['prefill_tok_s']['median']:,.0f}",
            "" if prefill is None else f"{prefill:.0%}",
        )
        if decode is None:
            rows.append((*row, *[""] * 4))
            continue
        rows.append(
            (
                *row,
                f"{decode['median']:,.1f}",
                f"{decode['best']:,.1f}",
                f"{result['of_limit']['decode']:.0%}",
                f"{result['decode_step']['over_products']:.2f}",
            )
        )
    return markdown_table(header, rows)


def _latencies(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    header = ("workload", "TTFT p50 ms", "p99", "inter-token p50 ms", "p99", "loop lag p50 ms", "p99", "max")
    rows = []
    for result in results:
        first, gap, lag = result["time_to_first_token"], result["inter_token"], result["event_loop_lag"]
        values = (first["p50"], first["p99"], gap["p50"], gap["p99"], lag["p50"], lag["p99"], lag["max"])
        rows.append((result["workload"], *map(_ms, values)))
    return markdown_table(header, rows)


def _steps(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    header = ("decode step, ms", *STEP_PARTS, "between", "total", "products")
    rows = [
        (result["workload"], *(_ms(result["decode_step"][name]) for name in header[1:]))
        for result in results
        if result["decode_step"] is not None
    ]
    return markdown_table(header, rows)


def _extras(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if cache := result.get("prefix_cache"):
            yield (
                f"{result['workload']}: TTFT {_ms(cache['time_to_first_token'])} ms with the beginning "
                f"cached, {_ms(cache['time_to_first_token_uncached'])} without ({cache['ratio']:.3f})"
            )
        if interruption := result.get("interruption"):
            gaps, ended = interruption["inter_token"], _ms(interruption["time_to_first_token"])
            yield (
                f"{result['workload']}: while the long prompt runs ({ended} ms), inter-token "
                f"p50 {_ms(gaps['p50'])} ms, p99 {_ms(gaps['p99'])} "
                f"({interruption['p99_ratio']:.1f} x undisturbed)"
            )
            if not interruption["others_went_on"]:
                yield f"{result['workload']}: the others ended before the long prompt: give them more tokens"
        if result["decode_tok_s"] is None:
            yield f"{result['workload']}: answers took no longer than their first tokens: ask for more tokens"
        if result["is_disturbed"]:
            yield f"{result['workload']}: something disturbed it (canary {result['canary']:.2f})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f}"


def _products(calibration: dict[str, Any]) -> str:
    return ", ".join(
        f"{rows}: {seconds * 1e3:.1f}" for rows, seconds in calibration["product_seconds"].items()
    )
