"""The comparison's own parts, with an engine that does nothing."""

from __future__ import annotations

import asyncio
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benches.arms import ENVIRONMENT, ROOT, Arm, ArmFailedError, Worker
from benches.interleave import Interleaved
from benches.picture import bars
from benches.report import fill_docs, markdown
from tinyllm.bench import calibrate
from tinyllm.bench.calibrate import Calibration
from tinyllm.bench.limit import ModelShape

FAKE = """
import sys, time
from benches.peers.worker import serve

def generate(prompts, output_tokens):
    if len(prompts) == 13:
        sys.exit(3)
    print("noise of a library")
    time.sleep({seconds} * output_tokens)

print("a library says hello")
serve({name!r}, 1000, generate, dtype=sys.argv[2])
"""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[dict[str, Worker]]:
    """Two engines; the second takes twice as long for a token."""
    started = {}
    for name, seconds in (("tinyllm", 0.02), ("slow", 0.04)):
        script, python = tmp_path / f"{name}.py", tmp_path / name
        script.write_text(FAKE.format(name=name, seconds=seconds))
        python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "{script}" "$3" "$4"\n')
        python.chmod(0o755)
        arm = Arm(name, str(python), "fake", tmp_path, "json")
        started[name] = Worker(arm, "float32", ENVIRONMENT, tmp_path / "log")
    yield started
    for worker in started.values():
        worker.close()


def test_engines_are_measured_alike_and_compared(
    workers: dict[str, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = ModelShape(linears=((8, 8),), num_layers=1, head=(8, 8), kv_elements=8, attention_flops=8)
    calibration = Calibration(shape, torch.float32, 1)
    monkeypatch.setattr(calibrate, "CANARY_SECONDS", 0.005)
    failures: dict[str, str] = {}
    try:
        result = asyncio.run(Interleaved(workers, failures, calibration, blocks=3).measure("2x4x5"))
    finally:
        calibration.close()
    assert not failures
    comparison = result["decode_ratios"]["slow"]
    assert 1 < comparison["median"] < 4
    assert comparison["low"] <= comparison["median"] <= comparison["high"]
    assert result["cpu_seconds"].keys() == {"tinyllm", "slow"}
    assert [len(samples) for samples in result["samples"].values()] == [3, 3]


def test_what_is_too_short_to_measure_has_no_rate(
    workers: dict[str, Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a worker says so of every workload; it is tried again, then left out of this one."""
    tries = []

    def measure(workload: str, seed: int) -> dict[str, Any]:
        tries.append(workload)
        return {"decode_tok_s": None, "prefill_tok_s": 5.0, "cpu_seconds": 0.1}

    monkeypatch.setattr(workers["slow"], "measure", measure)
    monkeypatch.setattr(calibrate, "CANARY_SECONDS", 0.005)
    shape = ModelShape(linears=((8, 8),), num_layers=1, head=(8, 8), kv_elements=8, attention_flops=8)
    calibration = Calibration(shape, torch.float32, 1)
    failures: dict[str, str] = {}
    try:
        result = asyncio.run(Interleaved(workers, failures, calibration, blocks=1).measure("2x4x5"))
    finally:
        calibration.close()
    assert tries == ["2x4x5"] * 3
    assert result["decode_tok_s"].keys() == {"tinyllm"}
    assert not failures


def test_a_worker_that_dies_is_reported(workers: dict[str, Worker]) -> None:
    assert workers["slow"].about == {"ready": "slow", "dtype": "float32"}
    assert workers["slow"].peak_memory() > 0
    with pytest.raises(ArmFailedError, match="slow"):
        workers["slow"].measure("13x1x2", 0)


RUN: dict[str, Any] = {
    "model": "m",
    "blocks": 3,
    "environment": {"cpu": "c", "threads": 1, "torch": "2", "commit": "abc", "load_average": [0.0]},
    "dtypes": {
        "float32": {
            "engines": {"tinyllm": {}, "slow": {}, "gone": {}},
            "failures": {"gone": "1x2x3: gone ended"},
            "cold_start_seconds": {"tinyllm": 1.0, "slow": 2.0},
            "peak_memory_bytes": {"tinyllm": 1e8, "slow": 2e8, "gone": 0},
            "workloads": [
                {
                    "workload": "1x2x3",
                    **{f"{kind}_tok_s": {"tinyllm": 30.0, "slow": 10.0} for kind in ("decode", "prefill")},
                    **{
                        f"{kind}_ratios": {"slow": {"median": 3.0, "low": 2.5, "high": 3.5, "pairs": 3}}
                        for kind in ("decode", "prefill")
                    },
                    "limit_tok_s": {"decode": 40.0, "prefill": 60.0},
                    "disturbed": 1,
                }
            ],
        }
    },
}


def test_markdown_has_rates_ratios_and_failures() -> None:
    text = markdown(json.loads(json.dumps(RUN)))
    assert "| 1x2x3         |    30.0 | 10.0 |      |        3.00 | 2.50-3.50 |      75% |" in text
    assert "| 1x2x3          |    30.0 | 10.0 |      |        3.00 | 2.50-3.50 |      50% |" in text
    assert "| 1x2x3                           | 3.00 |      |" in text
    assert "gone failed: 1x2x3: gone ended" in text
    assert "1 measurements were disturbed" in text


def test_tables_go_where_the_docs_have_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marked = "<!-- results {} {} float32 -->\n{}\n<!-- end -->\n"
    marks = [
        ("comparison", RUN["model"], "stale"),
        ("alone", RUN["model"], "kept"),
        ("comparison", "x", "other"),
    ]
    page.write_text("a\n".join(marked.format(*mark) for mark in marks))
    fill_docs(page, RUN)
    text = page.read_text()
    assert "stale" not in text
    assert "| 1x2x3" in text
    assert "kept" in text
    assert "other" in text
    fill_docs(page, RUN)
    assert page.read_text() == text


def test_the_docs_have_marks() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    runs = ("smollm2-135m-instruct bfloat16", "smollm2-135m-instruct float32", "qwen3-0.6b-shape bfloat16")
    for run in runs:
        for maker in ("comparison", "alone"):
            assert f"<!-- results {maker} {run} -->\n" in text


def test_the_picture_is_svg_with_every_number() -> None:
    values = {"1x2x3": {"x": 10.0, "y": 1234.0}, "4x5x6": {"x": 5.0}}
    svg = ElementTree.fromstring(bars("name", "a <title>", values).svg)
    text = " ".join(svg.itertext())
    assert all(part in text for part in ("a <title>", "1x2x3", "4x5x6", "1,234", "10", "5"))
