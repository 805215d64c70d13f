"""Agreement of engines: where answers part, what counts as a tie, and peers as processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tinyllm.bench.agree import engines
from tinyllm.bench.agree.answers import Answer, first_difference, pairs
from tinyllm.bench.agree.engines import Job, Peer, PeerFailedError, ask
from tinyllm.cli.main import main


def answer(*steps: tuple[int, int, float]) -> Answer:
    token_ids, runners_up, margins = zip(*steps, strict=True)
    return Answer(token_ids, runners_up, margins)


SAME = answer((5, 6, 2.0), (7, 8, 0.0004))
SWAPPED = answer((5, 6, 2.1), (8, 7, 0.0002))
CLEAR = answer((5, 6, 2.0), (8, 7, 0.3))
THIRD = answer((5, 6, 2.0), (9, 7, 0.0002))
EARLY = answer((6, 5, 0.0001), (1, 2, 1.0))


def test_equal_answers_have_no_difference() -> None:
    assert first_difference(SAME, SAME) is None


def test_the_first_difference_has_both_margins_there() -> None:
    difference = first_difference(SAME, SWAPPED)
    assert difference is not None
    assert (difference.position, difference.token_ids) == (1, (7, 8))
    assert difference.margins == (0.0004, 0.0002)


@pytest.mark.parametrize(("other", "tie"), [(SWAPPED, True), (CLEAR, False), (THIRD, False)])
def test_a_tie_is_a_small_margin_between_the_same_two_tokens(other: Answer, tie: bool) -> None:
    difference = first_difference(SAME, other)
    assert difference is not None
    assert difference.is_tie(1e-3) is tie


def test_pairs_count_every_prompt_once() -> None:
    (pair,) = pairs({"a": [SAME] * 4, "b": [SAME, SWAPPED, CLEAR, EARLY]}, 1e-3)
    assert (pair.equal, pair.ties, pair.different) == (1, 1, 2)
    assert pair.equal_tokens == 2 + 1 + 1 + 0
    assert pair.verdict == "DIFFERENT"
    assert pairs({"a": [SAME], "b": [SWAPPED]}, 1e-3)[0].verdict == "equal but for ties"
    assert pairs({"a": [SAME], "b": [SAME], "c": [SAME]}, 1e-3)[2].engines == ("b", "c")


def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> Peer:
    script = tmp_path / "worker.py"
    script.write_text(code)
    monkeypatch.setattr(engines, "_WORKER", script)
    return Peer("transformers", sys.executable, tmp_path / "model")


def test_a_peer_gets_the_job_and_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = """
import json, sys
job = json.load(sys.stdin)
print(json.dumps({"version": f"{job['dtype']} {job['threads']}"}))
for prompt in job["prompts"]:
    count = job["max_tokens"]
    print(json.dumps({"token_ids": prompt[:1] * count, "runners_up": [0] * count, "margins": [0.5] * count}))
"""
    version, answers = ask(scripted(monkeypatch, tmp_path, code), Job([[4, 2], [9]], "float32", 3, 2))
    assert version == "float32 3"
    assert answers == [answer((4, 0, 0.5), (4, 0, 0.5)), answer((9, 0, 0.5), (9, 0, 0.5))]


@pytest.mark.parametrize(
    "code", ["raise SystemExit('no such dtype')", "import sys; print('no such dtype', file=sys.stderr)"]
)
def test_a_peer_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    with pytest.raises(PeerFailedError, match="no such dtype"):
        ask(scripted(monkeypatch, tmp_path, code), Job([[4]], "float32", 1, 2))


def test_an_interpreter_that_is_not_there_has_no_peer() -> None:
    assert not Peer("transformers", "/no/such/python", Path("model")).is_installed()


def test_tinyllm_and_transformers_agree(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "agree.json"
    arguments = ["--model", str(tiny_llama), "--max-tokens", "6", "--num-threads", "1", "--json", str(file)]
    assert main(["bench", "agree", *arguments, "--backends", "transformers"]) == 0
    report = json.loads(file.read_text())
    (pair,) = report["pairs"]
    assert (pair["engines"], pair["verdict"]) == (["tinyllm", "transformers"], "equal")
    assert pair["equal_tokens"] == 6 * len(report["prompts"])
    assert "tinyllm = transformers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backends", "vllm", "--vllm-python", "/no/such/python"], "--vllm-python"),
        (["--backends", "llama.cpp"], "--gguf"),
        (["--max-tokens", "0"], "--max-tokens"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tiny_llama: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "agree", "--model", str(tiny_llama), *arguments]) == 2
    assert message in capsys.readouterr().err
