"""The engine's Prometheus metrics: every declaration, and the one call a step makes.

Names, buckets and meanings are those that dashboards for LLM servers know, under ``tinyllm:``.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["CANCEL_PHASES", "FINISHED_REASONS", "STEP_PARTS", "EngineMetrics", "FinishedRequest", "StepStats"]

FIRST_TOKEN_BUCKETS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
LATENCY_BUCKETS: Final = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0),
    *(30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
INTER_TOKEN_BUCKETS: Final = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
STEP_TIME_BUCKETS: Final = (
    *(
        0.00005,
        0.0001,
        0.00025,
        0.0005,
        0.001,
        0.0025,
        0.005,
        0.01,
        0.025,
        0.05,
        0.1,
        0.25,
        0.5,
        1.0,
        2.5,
        5.0,
    ),
)
LOOP_LAG_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 5.0)
CHOICES_BUCKETS: Final = (1, 2, 5, 10, 20)

FINISHED_REASONS: Final = ("stop", "length", "abort", "timeout", "stalled", "error")
CACHE_RESULTS: Final = ("hit", "partial", "miss")
CANCEL_PHASES: Final = ("queued", "prefill", "decode", "stalled")
STEP_PARTS: Final = ("schedule", "build", "forward", "sample", "output")


def one_two_five(limit: int) -> tuple[int, ...]:
    """Return 1, 2, 5, 10, 20, 50, ... up to ``limit``: buckets for token counts."""
    values: list[int] = []
    power = 1
    while power <= limit:
        values.extend(power * digit for digit in (1, 2, 5) if power * digit <= limit)
        power *= 10
    return tuple(values)


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """What is known of a request (all its answers) at its end; times in seconds, None where it never got."""

    reason: str
    """One of `FINISHED_REASONS`."""
    total: float
    prompt_tokens: int
    generation_tokens: int
    longest_answer: int
    n: int
    max_tokens: int
    queued: float | None
    prefill: float | None
    decode: float | None
    inference: float | None


@dataclass(slots=True)
class StepStats:
    """What happened since the last step, gathered without touching a metric."""

    num_running: int = 0
    num_waiting: int = 0
    num_stalled: int = 0
    kv_cache_usage: float = 0.0
    scheduled_tokens: int = 0
    """Rows of the step's batch; 0 if nothing ran."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits: int = 0
    """Of those, tokens found there."""
    prefix_cache_results: Tally[str] = field(default_factory=Tally)
    """Requests by `CACHE_RESULTS`."""
    first_token_times: list[float] = field(default_factory=list)
    inter_token_times: list[float] = field(default_factory=list)
    backpressure_times: list[float] = field(default_factory=list)
    cancelled: Tally[str] = field(default_factory=Tally)
    """By `CANCEL_PHASES`."""
    finished: list[FinishedRequest] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by `STEP_PARTS`."""


class EngineMetrics:
    """One engine's metrics, in a registry of its own."""

    def __init__(self, model_name: str = "", engine: str = "0", max_model_len: int = 1_000_000) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._labels = {"model_name": model_name, "engine": engine}
        self._families: dict[str, Any] = {}
        tokens = one_two_five(max_model_len)

        self._running = self._gauge("num_requests_running", "Answers being computed.")
        self._waiting = self._gauge("num_requests_waiting", "Answers accepted and not running.")
        self._stalled = self._gauge("num_requests_stalled", "Answers that wait for their reader to read.")
        self._usage = self._gauge("kv_cache_usage_perc", "KV blocks in use; 1 is all of them.")

        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that began to run.")
        self._generated = self._counter("generation_tokens", "Tokens generated.")
        self._preemptions = self._counter("num_preemptions", "Preemptions.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._cache_results = {
            result: self._counter(
                "prefix_cache_requests",
                "Requests that looked in the prefix cache: hit (all that can be reused), partial or miss.",
                result=result,
            )
            for result in CACHE_RESULTS
        }
        self._finished = {
            reason: self._counter("request_success", "Ended requests.", finished_reason=reason)
            for reason in FINISHED_REASONS
        }
        self._cancelled = {
            phase: self._counter("requests_cancelled", "Aborted requests, by where they were.", phase=phase)
            for phase in CANCEL_PHASES
        }

        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between two tokens of an answer.", INTER_TOKEN_BUCKETS
        )
        self._latency = {
            part: self._histogram(name, text, LATENCY_BUCKETS)
            for part, name, text in (
                ("total", "e2e_request_latency_seconds", "From arrival to the end."),
                ("queued", "request_queue_time_seconds", "From arrival to being scheduled."),
                ("inference", "request_inference_time_seconds", "From being scheduled to the last token."),
                ("prefill", "request_prefill_time_seconds", "From being scheduled to the first token."),
                ("decode", "request_decode_time_seconds", "From the first to the last token."),
            )
        }
        self._counts = {
            part: self._histogram(name, text, buckets)
            for part, name, text, buckets in (
                ("prompt_tokens", "request_prompt_tokens", "Prompt tokens of a request.", tokens),
                ("generation_tokens", "request_generation_tokens", "Tokens generated for a request.", tokens),
                ("longest_answer", "request_max_num_generation_tokens", "Of its longest answer.", tokens),
                ("n", "request_params_n", "Answers asked for.", CHOICES_BUCKETS),
                ("max_tokens", "request_params_max_tokens", "Most tokens of an answer.", tokens),
            )
        }
        self._iteration = self._histogram(
            "iteration_tokens_total", "Tokens computed in a step.", one_two_five(50_000)
        )
        self._lag = self._histogram(
            "event_loop_lag_seconds",
            "How late the event loop runs what a step posts to it.",
            LOOP_LAG_BUCKETS,
        )
        self._backpressure = self._histogram(
            "stream_backpressure_seconds", "How long an answer waited for its reader.", LATENCY_BUCKETS
        )
        self._step_parts = {
            part: self._histogram(
                "step_time_seconds", "Time of a step, by part.", STEP_TIME_BUCKETS, part=part
            )
            for part in STEP_PARTS
        }

    # One declaration each: a family is registered once, and its labelled children come from it.

    def _gauge(self, name: str, text: str, **labels: str) -> Gauge:
        return cast(Gauge, self._child(Gauge, name, text, labels))

    def _counter(self, name: str, text: str, **labels: str) -> Counter:
        return cast(Counter, self._child(Counter, name, text, labels))

    def _histogram(self, name: str, text: str, buckets: Sequence[float], **labels: str) -> Histogram:
        return cast(Histogram, self._child(Histogram, name, text, labels, buckets=buckets))

    def _child(self, kind: type, name: str, text: str, labels: dict[str, str], **options: Any) -> Any:
        labels = self._labels | labels
        if name not in self._families:
            self._families[name] = kind(
                f"tinyllm:{name}", text, labelnames=tuple(labels), registry=self.registry, **options
            )
        return self._families[name].labels(**labels)

    def describe_cache(self, **settings: object) -> None:
        """Publish how the KV cache is set up, as the labels of ``tinyllm:cache_config_info``."""
        labels = {name: str(value) for name, value in settings.items()}
        self._gauge("cache_config_info", "Settings of the KV cache.", **labels).set(1)

    def record(self, stats: StepStats) -> None:
        """Take a step's worth of news."""
        self._running.set(stats.num_running)
        self._waiting.set(stats.num_waiting)
        self._stalled.set(stats.num_stalled)
        self._usage.set(stats.kv_cache_usage)
        for counter, amount in (
            (self._prompt_tokens, stats.prompt_tokens),
            (self._generated, stats.generation_tokens),
            (self._preemptions, stats.preemptions),
            (self._queries, stats.prefix_cache_queries),
            (self._hits, stats.prefix_cache_hits),
        ):
            if amount:
                counter.inc(amount)
        for result, amount in stats.prefix_cache_results.items():
            self._cache_results[result].inc(amount)
        for phase, amount in stats.cancelled.items():
            self._cancelled[phase].inc(amount)
        for histogram, times in (
            (self._first_token, stats.first_token_times),
            (self._inter_token, stats.inter_token_times),
            (self._backpressure, stats.backpressure_times),
        ):
            for seconds in times:
                histogram.observe(seconds)
        for request in stats.finished:
            self._record_finished(request)
        if stats.scheduled_tokens:
            self._iteration.observe(stats.scheduled_tokens)
        for part, seconds in stats.timings.items():
            self._step_parts[part].observe(seconds)

    def record_cancelled(self, phase: str) -> None:
        """Count a request that ended before the executor thread knew of it. Called on the event loop."""
        self._cancelled[phase].inc()

    def record_loop_lag(self, seconds: float) -> None:
        """Note how late the event loop was. Called on the event loop."""
        self._lag.observe(seconds)

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    def _record_finished(self, request: FinishedRequest) -> None:
        self._finished[request.reason].inc()
        for part, histogram in self._latency.items():
            seconds = getattr(request, part)
            if seconds is not None:
                histogram.observe(seconds)
        for part, histogram in self._counts.items():
            histogram.observe(getattr(request, part))
