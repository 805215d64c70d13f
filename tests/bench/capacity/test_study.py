"""A whole study of a server that fails above a known rate."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.serve.scripted import Reply, scripted, whole
from tinyllm.bench.capacity.settings import CapacityOptions
from tinyllm.bench.capacity.study import forecast, run_capacity
from tinyllm.bench.capacity.table import capacity_lines, gathered
from tinyllm.bench.capacity.workload import Workload, unlike
from tinyllm.bench.plots.runs import runs_of, sections, words_of, write_report
from tinyllm.bench.serve.load import Plan
from tinyllm.bench.serve.records import Limits
from tinyllm.bench.serve.samples import Sample, Turn
from tinyllm.bench.serve.settings import DatasetOptions, ServerOptions
from tinyllm.cli.main import main
from tinyllm.errors import ConfigError

CAPACITY = 100.0
OPTIONS = CapacityOptions(
    good_ratio=0.75, start_rate=64.0, tolerance=0.3, probe_seconds=0.05, probe_requests=4, windows=2
)
LIMITS = Limits(e2el=60_000)


class Told(Workload):
    """Tells the server the rate, so that it can fail without a clock."""

    async def plan(self, rate: float, count: int, window: int = 0) -> Plan:
        plan = await super().plan(rate, count, window)
        return dataclasses.replace(
            plan, target=dataclasses.replace(plan.target, extra_body={"rate": rate, "window": window})
        )


async def answer(body: dict[str, Any], reply: Reply) -> None:
    if body.get("rate", 0) > CAPACITY:
        await reply.json({"error": {"message": "too much"}}, 503)
    else:
        await whole(reply, ["one", " two"])


def study(
    script: Any = answer, **dataset: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    saved: list[dict[str, Any]] = []

    async def run() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        async with scripted(script) as server:
            workload = Told(
                ServerOptions(base_url=server.url),
                DatasetOptions(vocab_size=900, num_prompts=4, **dataset),
                limits=LIMITS,
            )
            report = await run_capacity(
                workload, OPTIONS, save=lambda each: saved.append(json.loads(json.dumps(each)))
            )
            return report, server.bodies

    return *asyncio.run(run()), saved


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return study(dataset_name="burstgpt", max_input_len=20, max_output_len=8)[0]


def test_c_ref_is_found_and_its_parts_are_replayed(report: dict[str, Any]) -> None:
    found = report["capacity"]
    assert found["c_ref"] <= CAPACITY < found["not_sustained"]
    assert found["search_error"] <= OPTIONS.tolerance
    levels = report["levels"]
    assert [level["name"] for level in levels] == [
        f"{fraction:g}/{window}" for window in range(2) for fraction in OPTIONS.fraction
    ]
    assert all(level["rate"] == level["fraction"] * found["c_ref"] for level in levels)
    assert all(level["summary"]["completed"] == 4 for level in levels)
    assert all(level["metadata"]["arrivals"]["kind"] == "trace" for level in levels)


def test_the_report_is_saved_after_each_run() -> None:
    report, _, saved = study(random_input_len=5, random_output_len=2)
    assert [len(each["levels"]) for each in saved[-9:]] == list(range(9))
    numbers = [len(each["capacity"]["probes"]) for each in saved[:-9]]
    assert numbers == list(range(1, len(report["capacity"]["probes"]) + 1))
    assert saved[-1] == json.loads(json.dumps(report))


def test_a_file_that_is_too_small_for_a_probe_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one", "output_tokens": 2}\n' * 3)

    async def run() -> None:
        async with scripted(answer) as server:
            dataset = DatasetOptions(dataset_name="custom", dataset_path=path)
            workload = Workload(ServerOptions(base_url=server.url), dataset, limits=LIMITS)
            await run_capacity(workload, OPTIONS)

    with pytest.raises(ConfigError, match="3 prompts, but a probe at 64/s needs 4"):
        asyncio.run(run())


def test_no_two_runs_have_prompts_in_common() -> None:
    _, bodies, _ = study(
        dataset_name="prefix_repetition",
        prefix_repetition_prefix_len=6,
        prefix_repetition_suffix_len=2,
        prefix_repetition_num_prefixes=1,
    )
    runs: dict[tuple[float, int], set[tuple[int, ...]]] = {}
    for body in bodies:
        if "rate" in body and body["rate"] < OPTIONS.start_rate * 0.9:
            runs.setdefault((body["rate"], body["window"]), set()).add(tuple(body["prompt"][:6]))
    beginnings = [beginning for each in runs.values() for beginning in each]
    assert all(len(each) == 1 for each in runs.values()), "what a run shares stays shared"
    assert len(beginnings) == len(set(beginnings)) > 3


def test_a_server_that_answers_nothing_has_no_c_ref() -> None:
    async def refuse(body: dict[str, Any], reply: Reply) -> None:
        if "rate" in body:
            await reply.json({"error": {"message": "no"}}, 500)
        else:
            await whole(reply, ["one"])

    report, _, _ = study(refuse, random_input_len=5, random_output_len=2)
    assert report["capacity"]["c_ref"] is None
    assert report["levels"] == []
    assert "No rate was sustained." in list(capacity_lines(report))


def test_the_tables_and_the_page_have_every_level(report: dict[str, Any], tmp_path: Path) -> None:
    lines = "\n".join(capacity_lines(report))
    assert "C_ref = " in lines
    assert lines.count("not sustained |") == 2 * sum(
        rate > CAPACITY for rate in {probe["rate"] for probe in report["capacity"]["probes"]}
    )
    runs = runs_of(report, "mine")
    assert len(runs) == 8
    paths = write_report(tmp_path, "Title", list(sections("Figures", runs, words_of(report, "mine"))))
    page = paths[0].read_text()
    assert page.count("<tr>") == 9
    assert all(name in page for name in ("Time to first token against load", "0.25 of C_ref, window 1"))
    assert {path.suffix for path in tmp_path.iterdir()} == {".html", ".md", ".svg", ".png"}


def test_the_command_reports_results_of_both_kinds(report: dict[str, Any], tmp_path: Path) -> None:
    capacity, serve = tmp_path / "capacity.json", tmp_path / "serve.json"
    capacity.write_text(json.dumps(report))
    fields = ("schema", "kind", "metadata", "summary", "timeline", "client_lag", "server_metrics", "warnings")
    serve.write_text(json.dumps({name: report["levels"][0][name] for name in fields}))
    out = tmp_path / "out"
    assert main(["bench", "report", f"a={capacity}", str(serve), "--out", str(out), "--title", "Two"]) == 0
    table = (out / "report.md").read_text()
    assert "# Two" in table
    assert "serve" in table
    assert main(["bench", "compare", str(capacity), str(capacity)]) == 0
    serve.write_text(json.dumps({"kind": "throughput"}))
    assert main(["bench", "report", str(serve), "--out", str(out)]) == 2


def test_the_command_searches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> int:
        async with scripted(answer) as server:
            arguments = ["--base-url", server.url, "--vocab-size", "900", "--goodput", "e2el:60000"]
            arguments += ["--start-rate", "100", "--tolerance", "0.9", "--probe-requests", "2"]
            arguments += ["--probe-seconds", "0.01", "--windows", "1", "--json", str(tmp_path / "file.json")]
            arguments += ["--num-prompts", "4", "--report", str(tmp_path / "page")]
            # The script lets every rate pass: the search ends where it may not go on
            monkeypatch.setattr("tinyllm.bench.capacity.search.MAX_RATES", 2)
            return await asyncio.to_thread(main, ["bench", "capacity", *arguments])

    assert asyncio.run(run()) == 0
    assert "C_ref = 200 requests/s" in capsys.readouterr().out
    assert json.loads((tmp_path / "file.json").read_text())["capacity"]["c_ref"] == 200.0
    assert (tmp_path / "page" / "goodput.svg").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--goodput", "tpot:50"],
        ["--goodput", "ttft:50", "--window", "1", "--dataset-name", "burstgpt"],
        ["--goodput", "ttft:50", "--good-ratio", "0"],
        ["--goodput", "ttft:50", "--tolerance", "1"],
        ["--goodput", "ttft:50", "--probe-seconds", "nan"],
        ["--goodput", "ttft:50", "--fraction", "0"],
        ["--goodput", "ttft:50", "--windows", "-1"],
        ["--goodput", "ttft:50", "--windows", "2", "--dataset-name", "custom", "--dataset-path", "a.jsonl"],
    ],
)
def test_what_makes_no_search_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "capacity", "--base-url", "http://127.0.0.1:9", *arguments]) == 2
    assert "--" in capsys.readouterr().err


def test_the_forecast_is_of_all_replays() -> None:
    workload = Workload(ServerOptions(), DatasetOptions(num_prompts=100), limits=LIMITS)
    assert forecast(workload, CapacityOptions(fraction=(0.5, 1.0), windows=3), 2.0) == 3 * (100 + 50)


def test_prompts_of_each_kind_get_another_beginning() -> None:
    messages = [{"role": "user", "content": "question"}]
    samples = [
        Sample((Turn("text", 1), Turn("more", 1))),
        Sample((Turn(messages, 1),)),
        Sample((Turn([*range(5, 599), 600], 1),)),
    ]
    one, other = unlike(samples, "a"), unlike(samples, "b")
    assert one == unlike(samples, "a")
    assert all(mine.turns[0] != theirs.turns[0] for mine, theirs in zip(one, other, strict=True))
    assert str(one[0].turns[0].prompt).endswith(" text")
    assert one[0].turns[1] == samples[0].turns[1]
    ids = one[2].turns[0].prompt
    assert len(ids) == 595
    assert ids[1:] == [*range(6, 599), 600]
    assert messages == [{"role": "user", "content": "question"}], "the sample's own is left alone"


def test_warnings_that_differ_in_numbers_are_gathered() -> None:
    assert gathered(["late by 3.5 ms", "other", "late by 12 ms"]) == [
        "late by 3.5 ms (and 1 more like it)",
        "other",
    ]


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="--start-rate"):
        CapacityOptions(start_rate=0)
