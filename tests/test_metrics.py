from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tinyllm.metrics import EngineMetrics, FinishedRequest, StepStats, one_two_five

HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
    "iteration_tokens_total",
    "event_loop_lag_seconds",
    "stream_backpressure_seconds",
    "step_time_seconds",
)
COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "num_preemptions",
    "request_success",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "prefix_cache_requests",
    "requests_cancelled",
)
GAUGES = ("num_requests_running", "num_requests_waiting", "num_requests_stalled", "kv_cache_usage_perc")


def samples(metrics: EngineMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            labels = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found[sample.name.removeprefix("tinyllm:"), tuple(sorted(labels.items()))] = sample.value
    return found


def finished(**changes: object) -> FinishedRequest:
    values: dict[str, object] = {
        "reason": "stop",
        "total": 2.0,
        "prompt_tokens": 7,
        "generation_tokens": 9,
        "longest_answer": 5,
        "n": 2,
        "max_tokens": 64,
        "queued": 0.25,
        "prefill": 0.5,
        "decode": 1.25,
        "inference": 1.75,
    }
    return FinishedRequest(**{**values, **changes})  # type: ignore[arg-type]


def test_names_and_kinds() -> None:
    kinds = {}
    for family in text_string_to_metric_families(EngineMetrics("m").text()):
        assert family.name.startswith("tinyllm:")
        kinds[family.name.removeprefix("tinyllm:")] = family.type
    expected = dict.fromkeys(HISTOGRAMS, "histogram") | dict.fromkeys(COUNTERS, "counter")
    assert expected | dict.fromkeys(GAUGES, "gauge") == {
        name: kind for name, kind in kinds.items() if not name.endswith("_created")
    }


def test_every_series_names_model_and_engine() -> None:
    for family in text_string_to_metric_families(EngineMetrics("some-model", engine="3").text()):
        for sample in family.samples:
            assert sample.labels["model_name"] == "some-model"
            assert sample.labels["engine"] == "3"


def test_buckets_are_those_that_dashboards_know() -> None:
    found = samples(EngineMetrics("m"))

    def buckets(name: str) -> list[str]:
        return [dict(labels)["le"] for series, labels in found if series == f"{name}_bucket"]

    assert buckets("time_to_first_token_seconds")[:3] == ["0.001", "0.005", "0.01"]
    assert buckets("time_to_first_token_seconds")[-2:] == ["2560.0", "+Inf"]
    assert buckets("e2e_request_latency_seconds")[0] == "0.3"
    assert buckets("inter_token_latency_seconds")[-2:] == ["80.0", "+Inf"]
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)


def test_a_step_is_recorded_whole() -> None:
    metrics = EngineMetrics("m")
    stats = StepStats(
        num_running=3,
        num_waiting=2,
        num_stalled=1,
        kv_cache_usage=0.5,
        scheduled_tokens=12,
        prompt_tokens=9,
        generation_tokens=3,
        preemptions=1,
        prefix_cache_queries=20,
        prefix_cache_hits=16,
        first_token_times=[0.5],
        inter_token_times=[0.1, 0.3],
        backpressure_times=[4.0],
        cancelled=Counter({"queued": 2}),
        finished=[finished()],
        timings={"schedule": 0.001, "build": 0.002, "forward": 0.01, "sample": 0.003, "output": 0.004},
    )
    metrics.record(stats)
    metrics.record(StepStats(num_running=1))
    found = samples(metrics)
    expected = {
        ("num_requests_running", ()): 1,
        ("num_requests_waiting", ()): 0,
        ("prompt_tokens_total", ()): 9,
        ("generation_tokens_total", ()): 3,
        ("num_preemptions_total", ()): 1,
        ("prefix_cache_queries_total", ()): 20,
        ("prefix_cache_hits_total", ()): 16,
        ("time_to_first_token_seconds_sum", ()): 0.5,
        ("inter_token_latency_seconds_sum", ()): pytest.approx(0.4),
        ("inter_token_latency_seconds_count", ()): 2,
        ("stream_backpressure_seconds_sum", ()): 4.0,
        ("requests_cancelled_total", (("phase", "queued"),)): 2,
        ("request_success_total", (("finished_reason", "stop"),)): 1,
        ("request_success_total", (("finished_reason", "abort"),)): 0,
        ("e2e_request_latency_seconds_sum", ()): 2.0,
        ("request_queue_time_seconds_sum", ()): 0.25,
        ("request_prefill_time_seconds_sum", ()): 0.5,
        ("request_decode_time_seconds_sum", ()): 1.25,
        ("request_inference_time_seconds_sum", ()): 1.75,
        ("request_prompt_tokens_sum", ()): 7,
        ("request_generation_tokens_sum", ()): 9,
        ("request_max_num_generation_tokens_sum", ()): 5,
        ("request_params_n_sum", ()): 2,
        ("request_params_max_tokens_sum", ()): 64,
        ("iteration_tokens_total_sum", ()): 12,
        ("iteration_tokens_total_count", ()): 1,
        ("step_time_seconds_sum", (("part", "forward"),)): 0.01,
        ("step_time_seconds_count", (("part", "schedule"),)): 1,
    }
    assert {key: found[key] for key in expected} == expected


def test_a_request_that_never_ran_has_no_times() -> None:
    metrics = EngineMetrics("m")
    never = {"queued": None, "prefill": None, "decode": None, "inference": None}
    metrics.record(StepStats(finished=[finished(reason="abort", **never)]))
    found = samples(metrics)
    assert found["request_queue_time_seconds_count", ()] == 0
    assert found["e2e_request_latency_seconds_count", ()] == 1


def test_the_cache_is_described_by_labels() -> None:
    metrics = EngineMetrics("m")
    metrics.describe_cache(block_size=16, num_blocks=5)
    assert samples(metrics)["cache_config_info", (("block_size", "16"), ("num_blocks", "5"))] == 1


def test_two_engines_have_registries_of_their_own() -> None:
    one, two = EngineMetrics("m"), EngineMetrics("m")
    one.record(StepStats(generation_tokens=5))
    assert samples(one)["generation_tokens_total", ()] == 5
    assert samples(two)["generation_tokens_total", ()] == 0
