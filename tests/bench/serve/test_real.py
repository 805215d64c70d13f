"""``tinyllm bench serve`` against ``tinyllm serve``, as people type them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.process import ServerProcess, server_process
from tinyllm.bench.serve.records import RunResult, read_result
from tinyllm.cli.main import main

TINYLLM = (sys.executable, "-m", "tinyllm")
KEY = "a-key-for-the-bench-only"


@pytest.fixture(scope="module")
def server(tiny_llama: Path) -> Iterator[ServerProcess]:
    command = (*TINYLLM, "serve", str(tiny_llama), "--num-threads", "1", "--status-log-interval", "0")
    with server_process(*command, ready=False, api_keys=KEY) as process:
        yield process


def bench(server: ServerProcess, *flags: str) -> int:
    return main(["bench", "serve", "--base-url", server.url, "--ignore-eos", *flags])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def test_a_closed_loop_of_random_prompts(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    lengths = ("--random-input-len", "24", "--random-output-len", "6")
    flags = ("--num-prompts", "8", "--max-concurrency", "4", "--num-warmups", "2", *lengths)
    assert bench(server, *flags, "--json", str(path), "--save-detailed", "--metadata", "cpu=quiet") == 0
    shown = capsys.readouterr().out
    assert "closed loop of 4" in shown
    assert "| TTFT |" in shown
    run = read_result(path)
    assert all_answered(run, requests=8)
    assert {record.prompt_tokens for record in run.requests} == {24}, "as many as were asked for"
    assert {record.output_tokens for record in run.requests} == {6}
    assert run.metadata["cpu"] == "quiet"
    assert run.metadata["environment"]["cpus"]
    assert run.metadata["dataset"]["random_input_len"] == 24
    counted = {
        name: run.server_metrics["after"][name] - run.server_metrics["before"][name]
        for name in ("tinyllm:prompt_tokens_total", "tinyllm:generation_tokens_total")
    }
    assert counted == {"tinyllm:prompt_tokens_total": 8 * 24, "tinyllm:generation_tokens_total": 8 * 6}
    assert run.timeline[0].kv_usage is not None
    assert KEY not in path.read_text()


def all_answered(run: RunResult, *, requests: int) -> bool:
    assert run.summary["errors"] == {}
    assert run.summary["completed"] == len(run.requests) == requests
    assert all(record.ttft and record.e2el and record.usage for record in run.requests)
    return True


def test_a_trace_over_chat(server: ServerProcess, tmp_path: Path) -> None:
    flags = (
        "--dataset-name",
        "burstgpt",
        "--num-prompts",
        "12",
        "--max-input-len",
        "60",
        "--max-output-len",
        "16",
    )
    when = ("--replay-timestamps", "--request-rate", "40", "--goodput", "ttft:60000", "e2el:60000")
    assert (
        bench(
            server,
            "--backend",
            "openai-chat",
            *flags,
            *when,
            "--save-detailed",
            "--result-dir",
            str(tmp_path),
        )
        == 0
    )
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("openai-chat-40.0qps-tiny-llama-")
    run = read_result(path)
    assert all_answered(run, requests=12)
    assert run.summary["good_ratio"] == 1
    assert run.metadata["arrivals"]["kind"] == "trace"
    assert run.requests[-1].scheduled == pytest.approx(11 / 40)


def test_a_run_is_drawn_where_asked(server: ServerProcess, tmp_path: Path) -> None:
    flags = ("--num-prompts", "2", "--random-input-len", "8", "--random-output-len", "4", "--backend", "vllm")
    path = tmp_path / "run.json"
    assert (
        bench(server, *flags, "--json", str(path), "--report", str(tmp_path / "page"), "--plot-timeline") == 0
    )
    for directory in (tmp_path / "page", tmp_path / "run-report"):
        assert "tiny-llama" in (directory / "report.html").read_text()
        assert (directory / "inter-token.svg").exists(), "from the times of chunks, which the file lacks"
    assert read_result(path).requests == []
    assert bench(server, *flags, "--result-dir", str(tmp_path / "saved"), "--plot-timeline") == 0
    names = sorted(each.name for each in (tmp_path / "saved").iterdir())
    assert [name.endswith("-report") for name in names] == [True, False]


def test_a_conversation_finds_its_beginning_in_the_cache(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ("--random-input-len", "40", "--random-output-len", "8", "--turns", "3")
    flags = ("--dataset-name", "multi-turn", "--num-prompts", "2", "--max-concurrency", "2", *lengths)
    assert bench(server, "--backend", "openai-chat", *flags, "--json", "-", "--save-detailed") == 0
    run = RunResult.from_json(json.loads(capsys.readouterr().out))
    assert all_answered(run, requests=6)
    for record in run.requests:
        assert record.cached_tokens is not None
        assert (record.cached_tokens >= 48) == (record.turn > 0), "the template's beginning is always there"
    assert not any("cache" in warning for warning in run.warnings)


def test_the_same_seed_again_is_warned_of(server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--num-prompts", "3", "--random-input-len", "64", "--random-output-len", "2", "--seed", "77")
    bench(server, *flags)
    assert "another --seed" not in capsys.readouterr().out
    bench(server, *flags)
    assert "another --seed" in capsys.readouterr().out


def test_errors_are_shown_by_kind_with_an_example(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--num-prompts", "2", "--vocab-size", "300", "--random-input-len", "5000")
    assert bench(server, *flags) == 1
    shown = capsys.readouterr().out
    assert "| - http_400 " in shown
    assert "http_400: " in shown
    assert "maximum context length" in shown


def test_without_its_key_the_server_is_not_ready(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert bench(server) == 1, "and at once: no wait makes a key"
    assert "not ready" in capsys.readouterr().err
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    flags = (
        "--api-key-file",
        str(path),
        "--num-prompts",
        "1",
        "--vocab-size",
        "300",
        "--random-input-len",
        "9",
    )
    assert bench(server, *flags, "--random-output-len", "2") == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--goodput", "ttft"], "--goodput takes"),
        (["--goodput", "itl:5"], "--goodput takes"),
        (["--percentile-metrics", "ttft,speed"], "--percentile-metrics takes"),
        (["--metric-percentiles", "50,101"], "--metric-percentiles takes"),
        (["--extra-body", "[1]"], "--extra-body takes"),
        (["--header", "x"], "--header takes"),
        (["--metadata", "x"], "--metadata takes"),
        (["--request-rate", "0"], "--request-rate: "),
        (["--base-url", "host:1"], "--base-url must begin"),
        (["--turns", "3"], "--turns means nothing"),
        (["--json", "no-such-directory/run.json"], "make it first"),
        (["--report", "README.md/page"], "--report: "),
        (["--save-detailed"], "give --json FILE or --save-result"),
    ],
)
def test_wrong_use_is_told_at_once(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "serve", *flags]) == 2
    assert message in capsys.readouterr().err


def test_without_aiohttp_there_is_advice() -> None:
    code = (
        "import sys; sys.modules['aiohttp'] = None; from tinyllm.cli.main import main; "
        "sys.exit(main(['bench', 'serve']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'tinyllm[bench]'" in done.stderr


def test_the_client_loads_no_torch() -> None:
    code = (
        "import sys, tinyllm.bench.serve.load, tinyllm.bench.serve.planning, tinyllm.cli.bench.serve; "
        "from tinyllm.bench.environment import machine; machine(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_says_what_counts_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "serve", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("/tokenize", "--vocab-size", "tinyllm[bench]"):
        assert word in shown
