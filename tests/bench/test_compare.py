"""Two results side by side."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tinyllm.bench.compare import compare, comparison_lines
from tinyllm.cli.main import main
from tinyllm.errors import ConfigError

SERVE: dict[str, Any] = {
    "schema": 1,
    "kind": "serve",
    "metadata": {"environment": {"cpu": "one", "time": "noon"}, "dataset": {"name": "random", "seed": 0}},
    "summary": {
        "requests": 300,
        "output_throughput": 200.0,
        "ttft_ms": {"p50": 10.0, "p99": 40.0},
        "itl_ms": None,
        "errors": {},
    },
    "timeline": [{"t": 0.0, "in_flight": 3}],
    "warnings": [],
}
THROUGHPUT: dict[str, Any] = {
    "schema": 1,
    "kind": "throughput",
    "environment": {"commit": "abc", "threads": 2},
    "model": {"model": "tiny", "load_seconds": 1.0},
    "results": [
        {
            "workload": "1x32x64",
            "decode_tok_s": {"median": 50.0, "samples": [49.0, 51.0]},
            "is_disturbed": False,
        },
        {"workload": "8x64x64", "decode_tok_s": {"median": 400.0}},
    ],
}


def changed(report: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    new = copy.deepcopy(report)
    place: Any = new
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return new


def test_figures_are_named_by_path_and_have_ratios() -> None:
    comparison = compare(SERVE, changed(SERVE, "summary", "ttft_ms", "p99", to=80.0))
    ratios = {figure.name: figure.ratio for figure in comparison.figures}
    assert ratios == {
        "summary.requests": 1.0,
        "summary.output_throughput": 1.0,
        "summary.ttft_ms.p50": 1.0,
        "summary.ttft_ms.p99": 2.0,
    }
    assert comparison.different == {}


def test_members_of_a_list_meet_by_name_whatever_their_order() -> None:
    other = changed(THROUGHPUT, "results", to=list(reversed(copy.deepcopy(THROUGHPUT["results"]))))
    other["results"][0]["decode_tok_s"]["median"] = 500.0
    ratios = {figure.name: figure.ratio for figure in compare(THROUGHPUT, other).figures}
    assert ratios == {"results.1x32x64.decode_tok_s.median": 1.0, "results.8x64x64.decode_tok_s.median": 1.25}


@pytest.mark.parametrize(
    ("report", "path", "name"),
    [
        (THROUGHPUT, ("environment", "commit"), "environment.commit"),
        (THROUGHPUT, ("model", "model"), "model.model"),
        (SERVE, ("metadata", "environment", "cpu"), "metadata.environment.cpu"),
        (SERVE, ("metadata", "dataset", "name"), "metadata.dataset.name"),
    ],
)
def test_what_differs_about_the_runs_is_told(
    report: dict[str, Any], path: tuple[str, ...], name: str
) -> None:
    comparison = compare(report, changed(report, *path, to="another"))
    assert comparison.different.keys() == {name}
    assert any(name in line for line in comparison_lines(comparison, ("A", "B")))


def test_the_time_of_day_is_no_difference() -> None:
    assert not compare(SERVE, changed(SERVE, "metadata", "environment", "time", to="one")).different


def test_figures_of_one_result_alone_are_told() -> None:
    comparison = compare(SERVE, changed(SERVE, "summary", "itl_ms", to={"p50": 3.0}))
    assert (comparison.only_before, comparison.only_after) == ([], ["summary.itl_ms.p50"])


def test_nothing_over_nothing_is_equal_and_something_over_nothing_has_no_ratio() -> None:
    zero = changed(SERVE, "summary", "requests", to=0)
    assert compare(zero, zero).figures[0].ratio == 1.0
    assert compare(zero, SERVE).figures[0].ratio is None


@pytest.mark.parametrize(
    "other", [THROUGHPUT, changed(SERVE, "schema", to=2), changed(SERVE, "summary", to={})]
)
def test_results_that_have_nothing_in_common_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        compare(SERVE, other)


def test_the_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    files[0].write_text(json.dumps(SERVE))
    files[1].write_text(json.dumps(changed(SERVE, "summary", "output_throughput", to=300.0)))
    assert main(["bench", "compare", *map(str, files)]) == 0
    assert "1.500" in capsys.readouterr().out
    assert main(["bench", "compare", *map(str, files), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["summary.output_throughput"]["ratio"] == 1.5
    files[1].write_text("[1]")
    assert main(["bench", "compare", *map(str, files)]) == 2
    assert "new.json" in capsys.readouterr().err


def test_recorded_results_compare_with_themselves() -> None:
    results = sorted((Path(__file__).parents[2] / "benches" / "results").glob("*.json"))
    assert results
    for path in results:
        report = json.loads(path.read_text())
        comparison = compare(report, report)
        assert comparison.figures
        assert all(figure.ratio == 1.0 for figure in comparison.figures)
