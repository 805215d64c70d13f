"""The study of several servers: what one of them does wrong costs the others nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benches.arms import ROOT, version_of
from benches.serving.cells import ALONE, BESIDE, cells
from benches.serving.loads import Loads
from benches.serving.report import disturbance, docs_lines, replays, side_by_side, study_sections
from benches.serving.servers import Backend, RunningServer, llamacpp_server, vllm_server
from benches.serving.study import Job, Study
from tinyllm.bench.compare import compare
from tinyllm.bench.plots.runs import write_report
from tinyllm.errors import EngineError

FAKE = (sys.executable, "-m", "tests.bench.serving.fake_server")


def backend(name: str, *flags: str) -> Backend:
    return Backend(name, [*FAKE, name, *flags], sys.executable, "json")


def run_study(
    model: Path, out: Path, backends: list[Backend], **changes: Any
) -> tuple[dict[str, Any], list[Job]]:
    values: dict[str, Any] = {
        "model": model,
        "dtype": "float32",
        "threads": 1,
        "context": 256,
        "num_prompts": 4,
        "max_input_len": 512,
        "max_output_len": 128,
        "windows": 1,
        "one_window": [],
        "requests": 2,
        "rate": 50.0,
        "goodput": ["ttft:60000"],
        "start_rate": 200.0,
        "tolerance": 0.9,
        "probe_seconds": 0.01,
        "probe_requests": 2,
        "only": ["closed 1x", "beside", "C_ref"],
        "minutes": None,
        "job_minutes": 5.0,
        "seed": 0,
    }
    args = argparse.Namespace(**values | changes)
    study = Study(args, out / "study")
    jobs = Loads(args, study).jobs()
    asyncio.run(study.run(backends, jobs))
    study.save()
    return json.loads((out / "study.json").read_text()), jobs


@pytest.fixture(autouse=True)
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyllm.bench.capacity.search.MAX_RATES", 2)  # fake servers sustain any rate


def test_every_server_is_measured_under_every_load(tiny_llama: Path, tmp_path: Path) -> None:
    result, jobs = run_study(tiny_llama, tmp_path, [backend("tinyllm"), backend("other")])
    assert result["backends"].keys() == {"tinyllm", "other"}
    for found in result["backends"].values():
        assert found["failures"] == {}
        assert [cell["name"] for cell in found["cells"]] == ["closed 1x32x64", "short beside long prefill"]
        assert found["capacity"]["capacity"]["c_ref"] == 400.0
        assert [level["fraction"] for level in found["capacity"]["levels"]] == [0.25, 0.5, 0.75, 0.9]
        assert all(cell["summary"]["failed"] == 0 for cell in found["cells"])
    assert len(jobs) == 2 + 1 + 4
    assert result["metadata"]["options"]["probe_requests"] == 2
    assert str(tiny_llama) not in json.dumps(result)
    paths = write_report(tmp_path / "study", "Study", list(study_sections(result)))
    table = paths[1].read_text()
    assert "C_ref, requests/s" in table
    assert "| closed 1x32x64" in table
    assert compare(result, result).figures


def test_what_fails_is_noted_and_the_rest_goes_on(tiny_llama: Path, tmp_path: Path) -> None:
    servers = [backend("refuses", "--refuse"), backend("dies", "--die-after", "3"), backend("tinyllm")]
    result, _ = run_study(tiny_llama, tmp_path, servers)
    found = result["backends"]
    assert "ended with code 1" in found["refuses"]["failures"]["start"]
    assert found["refuses"]["cells"] == []
    assert found["dies"]["capacity"] is None or found["dies"]["capacity"]["capacity"]["c_ref"] is None
    assert found["tinyllm"]["failures"] == {}
    assert len(found["tinyllm"]["cells"]) == 2
    assert len(found["tinyllm"]["capacity"]["levels"]) == 4
    page = write_report(tmp_path / "study", "Study", list(study_sections(result)))[0].read_text()
    assert "What failed or was left out" in page


def test_the_version_of_a_server_is_told() -> None:
    assert version_of(sys.executable, "pytest.anything") == pytest.__version__
    assert version_of(sys.executable, "json") is None


def test_no_measurement_begins_when_time_is_up(tiny_llama: Path, tmp_path: Path) -> None:
    result, jobs = run_study(tiny_llama, tmp_path, [backend("tinyllm")], minutes=0.0, windows=0)
    found = result["backends"]["tinyllm"]
    assert found["cells"] == []
    assert found["failures"] == {job.name: "left out: no time" for job in jobs}
    assert list(study_sections(result))
    assert any("no time" in line for line in docs_lines(result))


def test_a_measurement_that_takes_too_long_is_given_up(tiny_llama: Path, tmp_path: Path) -> None:
    result, _ = run_study(tiny_llama, tmp_path, [backend("tinyllm")], job_minutes=0.0, only=["closed 1x"])
    assert result["backends"]["tinyllm"]["failures"] == {"closed 1x32x64": "TimeoutError"}


def test_a_server_rests_until_it_is_woken(tmp_path: Path) -> None:
    server = RunningServer(backend("one"), tmp_path / "log")
    try:
        os.waitid(os.P_PID, server._process.pid, os.WSTOPPED)  # returns, as it is stopped
        server.wake()
        os.waitid(os.P_PID, server._process.pid, os.WCONTINUED)
        assert server.is_alive
    finally:
        server.close()
    assert not server.is_alive


def test_a_server_that_does_not_start_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="refuses ended"):
        RunningServer(backend("refuses", "--refuse"), tmp_path / "log")
    assert "no such option" in (tmp_path / "log").read_text()


@pytest.mark.usefixtures("signals_are_heard")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_study_that_is_ended_keeps_what_it_has_and_ends_its_servers(
    number: int, tiny_llama: Path, tmp_path: Path
) -> None:
    code = f"""
import sys
from pathlib import Path
from benches.serving import __main__ as study
from tests.bench.serving.test_study import backend

def stuck(self, cell):
    async def run(server):
        print(server._process.pid, flush=True)
        await study.asyncio.sleep(600)
    return study_job("stuck", 1.0, run)

from benches.serving.study import Job as study_job
study.Loads._cell = stuck
study.installed = lambda args: [backend("tinyllm")]
sys.argv = ["study", "--model", {str(tiny_llama)!r}, "--out", {str(tmp_path)!r}, "--only", "stuck"]
study.main()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = int(process.stdout.readline())
        process.send_signal(number)
        process.communicate(timeout=120)
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["kind"] == "serving"


def cell(name: str, throughput: float, p99: float, failed: int = 0) -> dict[str, Any]:
    summary = {"output_throughput": throughput, "ttft_ms": {"p99": p99}, "failed": failed}
    return {"name": name, "summary": summary}


def test_servers_stand_side_by_side() -> None:
    backends = {
        "tinyllm": {"cells": [cell("a", 90, 10), cell("b", 5, 5, failed=1)]},
        "one": {"cells": [cell("a", 30, 40), cell("b", 4, 4)]},
        "two": {"cells": [cell("a", 60, 20)]},
    }
    throughput = side_by_side(backends, "output_throughput")
    assert throughput is not None
    assert throughput.rows == [("a", "90.0", "30.0", "60.0", "1.50"), ("b", "", "4.0", "", "")]
    latency = side_by_side(backends, "ttft_ms", "p99")
    assert latency is not None
    assert latency.rows[0] == ("a", "10.0", "40.0", "20.0", "0.50")
    assert side_by_side({"tinyllm": {"cells": []}}, "output_throughput") is None


def test_short_requests_are_compared_with_themselves_alone() -> None:
    def short(p99: float) -> dict[str, Any]:
        return {"ttft_ms": {"p50": 1.0, "p99": p99}, "by_label": {}}

    mixed = {"ttft_ms": {"p50": 9.0, "p99": 900.0}, "by_label": {"short": short(30.0), "long": short(900.0)}}
    cells = [{"name": ALONE, "summary": short(10.0)}, {"name": BESIDE, "summary": mixed}]
    table = disturbance({"one": {"cells": cells}, "without": {"cells": cells[:1]}})
    assert table is not None
    assert table.rows == [("one", "1.0", "1.0", "10.0", "30.0", "3.00")]


def test_a_slow_server_may_replay_only_the_first_window(tiny_llama: Path, tmp_path: Path) -> None:
    backends = [backend("tinyllm"), backend("llama.cpp")]
    result, _ = run_study(tiny_llama, tmp_path, backends, windows=2, one_window=["llama.cpp"], only=["C_ref"])
    windows = {
        name: [level["window"] for level in found["capacity"]["levels"]]
        for name, found in result["backends"].items()
    }
    assert windows == {"tinyllm": [0] * 4 + [1] * 4, "llama.cpp": [0] * 4}
    assert set(result["backends"]["llama.cpp"]["failures"].values()) == {
        "left out: it replays only the first window"
    }


def level(fraction: float, window: int, good: float) -> dict[str, Any]:
    latencies = {"ttft_ms": {"p50": 5.0 + window, "p99": 50.0}, "tpot_ms": {"p99": 9.0}}
    summary = {"completed": 10, "failed": window, "good_ratio": good, **latencies}
    lag = {"p99_ms": 1.0 + window}
    return {"fraction": fraction, "rate": 2.0, "summary": summary, "queue_ms": None, "client_lag": lag}


def test_windows_at_the_same_load_are_one_row() -> None:
    report = {"levels": [level(0.5, 0, 1.0), level(0.9, 0, 1.0), level(0.5, 1, 0.8)]}
    table = replays({"one": {"capacity": report}, "without": {"capacity": None}})
    assert table is not None
    assert [row[0] for row in table.rows] == ["one at 0.5 C_ref", "one at 0.9 C_ref"]
    assert table.rows[0] == ("one at 0.5 C_ref", "2", "20", "1", "0.800", "6", "50", "9", "")


def test_the_documentation_has_everything_side_by_side(tiny_llama: Path, tmp_path: Path) -> None:
    result, _ = run_study(tiny_llama, tmp_path, [backend("tinyllm"), backend("other")])
    lines = "\n".join(docs_lines(result))
    for words in (
        "C_ref, requests/s",
        "Output tokens a second:",
        "tinyllm at 0.9 C_ref",
        "The client's own lag",
    ):
        assert words in lines
    assert (
        "<!-- results serving smollm2-135m-instruct bfloat16 -->\n"
        in (ROOT / "docs" / "benchmarks.md").read_text()
    )


@pytest.mark.parametrize("context", [128, 256, 2048, 8192])
def test_loads_fit_the_context(context: int) -> None:
    found = cells(64, 3.0, context)
    assert found
    for each in found:
        options = each.dataset_options("model", 0)
        options.check()
        each.arrival_options()
        assert each.seconds() > 0
        longest = each.prompt_tokens + each.output_tokens
        if options.dataset_name == "prefix_repetition":
            longest += options.prefix_repetition_prefix_len
        for kind in options.mix:
            longest = max(longest, sum(map(int, kind.partition(":")[2].split("x"))))
        assert longest <= context


def test_commands_of_peers_name_the_model_without_its_path() -> None:
    path = Path("/somewhere/model")
    llama = llamacpp_server("python", path, 2, 512, (2, 0))
    assert json.loads(llama.extra_body or "") == {"logit_bias": {"2": -100, "0": -100}}
    assert "model" in llama.command
    vllm = vllm_server("python", path, "bfloat16", 2, 512, eager=True)
    assert vllm.environment["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"
    assert vllm.command[-1] == "--enforce-eager"
