"""A whole benchmark of a tiny model: everything that the report promises is there, and possible."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinyllm.bench import calibrate
from tinyllm.bench.cold_start import measure_cold_start
from tinyllm.bench.suite import SCHEMA, fitting, run_suite
from tinyllm.bench.table import report_lines
from tinyllm.bench.workload import Workload
from tinyllm.cli.main import main
from tinyllm.config import EngineConfig
from tinyllm.errors import ConfigError, TinyLLMError
from tinyllm.metrics import STEP_PARTS

WORKLOADS = ("1x8x4", "3x8x24+64", "2x48x3+shared")


@pytest.fixture(scope="module")
def config(tiny_llama: Path) -> EngineConfig:
    return EngineConfig(model=str(tiny_llama), num_threads=1, progress=False, max_num_seqs=1)


@pytest.fixture(scope="module")
def report(config: EngineConfig) -> dict[str, Any]:
    workloads = [Workload.parse(text) for text in WORKLOADS]
    return measured(config, workloads, cold_start=False)


def measured(config: EngineConfig, workloads: list[Workload], *, cold_start: bool) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:  # less to measure
        for name, value in {"READ_BYTES": 8 << 20, "SQUARE": 256, "CANARY_SECONDS": 0.005}.items():
            patch.setattr(calibrate, name, value)
        return asyncio.run(run_suite(config, workloads, repeats=2, cold_start=cold_start))


@pytest.fixture(scope="module")
def results(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {result["workload"]: result for result in report["results"]}


def test_the_report_says_what_ran_and_where(report: dict[str, Any]) -> None:
    assert report["schema"] == SCHEMA
    assert report["model"]["model"] == "tiny-llama"
    assert report["environment"]["threads"] == 1
    assert {"cpu", "torch", "commit", "settings", "load_average"} <= report["environment"].keys()
    assert json.loads(json.dumps(report)) == report


def test_the_machine_is_measured(report: dict[str, Any]) -> None:
    calibration = report["calibration"]
    assert 1e8 < calibration["bytes_per_second"] < 1e13
    assert 1e8 < calibration["flops"] < 1e15
    assert list(calibration["product_seconds"]) == ["1", "4", "8", "16", "32"]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_workload_has_rates_latencies_and_steps(
    results: dict[str, dict[str, Any]], workload: str
) -> None:
    result = results[workload]
    for rate in (result["prefill_tok_s"], result["decode_tok_s"]):
        assert 0 < rate["median"] <= rate["best"]
    for times in (result["time_to_first_token"], result["inter_token"]):
        assert 0 < times["p50"] <= times["p99"] <= times["max"] < 60
    step = result["decode_step"]
    assert sum(step[part] for part in STEP_PARTS) + step["between"] == pytest.approx(step["total"], rel=0.5)
    assert step["products"] > 0
    assert result["of_limit"]["decode"] > 0
    assert result["repeats"] == 2
    assert len(result["disturbance"]) == 2


def test_a_shared_beginning_is_measured_with_the_cache_and_without(
    results: dict[str, dict[str, Any]],
) -> None:
    cache = results["2x48x3+shared"]["prefix_cache"]
    assert cache["time_to_first_token"] > 0
    assert cache["time_to_first_token_uncached"] > 0
    assert "prefix_cache" not in results["1x8x4"]


def test_a_prompt_in_between_is_measured(results: dict[str, dict[str, Any]]) -> None:
    interruption = results["3x8x24+64"]["interruption"]
    assert interruption["time_to_first_token"] > 0
    assert interruption["inter_token"]["p50"] > 0
    assert interruption["p99_ratio"] > 0


def test_tables_are_markdown(report: dict[str, Any]) -> None:
    for kind in ("throughput", "latency"):
        lines = list(report_lines(report, kind))
        for workload in WORKLOADS:
            assert sum(line.startswith(f"| {workload} ") for line in lines) == 3
        tables = [line for line in lines if line.startswith("|")]
        assert all(line.endswith("|") for line in tables)


def test_without_a_rate_of_decoding_there_is_advice(report: dict[str, Any]) -> None:
    result = report["results"][0] | {"decode_tok_s": None, "decode_step": None}
    result["of_limit"] = result["of_limit"] | {"decode": None}
    lines = list(report_lines(report | {"results": [result]}, "throughput"))
    assert any("ask for more tokens" in line for line in lines)
    row = next(line for line in lines if line.startswith(f"| {result['workload']} "))
    assert [bool(cell.strip()) for cell in row.strip("|").split("|")] == [True] * 3 + [False] * 4


def test_a_workload_that_does_not_fit_is_refused(config: EngineConfig) -> None:
    long = Workload(1, 5000, 2)
    assert fitting(config, [long, Workload(1, 8, 2)]) == [Workload(1, 8, 2)]
    with pytest.raises(ConfigError, match="5002 tokens"):
        asyncio.run(run_suite(config, [long]))


def test_cold_start(config: EngineConfig) -> None:
    report = measured(config, [Workload(2, 16, 4), Workload(1, 8, 2, intruder=60)], cold_start=True)
    cold = report["cold_start"]
    assert cold["workload"] == "2x16x4", "most tokens, but for those of an intruder"
    assert 0 < cold["load_seconds"] < cold["first_token_seconds"] < 120
    assert cold["weight_bytes"] < cold["peak_memory_bytes"]
    assert 0 < cold["peak_memory_limit_bytes"] - 1.25 * cold["weight_bytes"] - 350_000_000 < 1e6
    assert any("350 is" in line for line in report_lines(report, "latency"))


@pytest.mark.slow
def test_a_cold_start_that_fails_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TinyLLMError, match="cold start failed"):
        measure_cold_start(EngineConfig(model="no/such/model.gguf"), Workload(1, 8, 2))
    assert "no/such/model.gguf" in capfd.readouterr().err


def test_the_process_of_a_cold_start_does_not_load_torch_early() -> None:
    code = "import sys, tinyllm.bench.cold_start; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_command(tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    options = ["--model", str(tiny_llama), "--no-progress", "--num-threads", "1", "--no-cold-start"]
    options += ["--repeat", "1", "--json", str(file)]
    assert main(["bench", "throughput", "--workloads", "1x4x3", *options]) == 0
    assert "| 1x4x3" in capsys.readouterr().out
    saved = json.loads(file.read_text())
    assert saved["kind"] == "throughput"
    assert [result["workload"] for result in saved["results"]] == ["1x4x3"]


@pytest.mark.parametrize(
    "options",
    [["--workloads", "many"], ["--enable-prefix-caching"], ["--repeat", "0"], ["--device", "tpu"]],
)
def test_wrong_use(options: list[str], tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "--model", str(tiny_llama), *options]) == 2
    assert "tinyllm bench:" in capsys.readouterr().err
