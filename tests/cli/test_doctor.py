"""``tinyllm doctor``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tinyllm.bench import exactness
from tinyllm.cli.main import main
from tinyllm.models.causal_lm import CausalLM


def test_says_what_the_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--num-threads", "1"]) == 0
    out = capsys.readouterr().out
    for label in (
        "processor",
        "threads",
        "free memory",
        "torch",
        "C compiler",
        "kernels",
        "bfloat16",
        "attention",
    ):
        assert f"\n{label} " in out
    assert "pass" not in out


def test_checks_pass_on_a_tiny_model(tiny_llama: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--check", "--model", str(tiny_llama), "--num-threads", "1", "--json"]) == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    names = " ".join(check["name"] for check in checks)
    for part in ("float32: alone = batched, hidden", "bfloat16: alone = chunked, logits", "greedy"):
        assert part in names
    assert {check["status"] for check in checks} <= {"pass", "not promised"}


def test_a_result_that_depends_on_batch_mates_fails(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    honest = CausalLM.forward

    def depends(self: CausalLM, input_ids: torch.Tensor, *rest: object) -> torch.Tensor:
        hidden = honest(self, input_ids, *rest)  # type: ignore[arg-type]
        return hidden + len(input_ids) * 1e-3

    monkeypatch.setattr(CausalLM, "forward", depends)
    monkeypatch.setattr(exactness, "can_pack", lambda dtype, device: True)
    assert main(["doctor", "--check", "--model", str(tiny_llama), "--num-threads", "1"]) == 1
    out = capsys.readouterr().out
    assert "FAIL" in out
    assert "checks failed" in out


def test_a_backend_that_chooses_other_tokens_fails(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinyllm.artifacts.directory import open_directory
    from tinyllm.runner.reference import next_token_logits

    def wrong(model: CausalLM, *rest: object) -> torch.Tensor:
        logits = next_token_logits(model, *rest)  # type: ignore[arg-type]
        return logits if model.backend.name == "reference" else -logits

    if exactness._load(open_directory(tiny_llama), torch.float32, "auto").backend.name == "reference":
        pytest.skip("only the reference backend runs here")
    monkeypatch.setattr(exactness, "next_token_logits", wrong)
    assert main(["doctor", "--check", "--model", str(tiny_llama), "--num-threads", "1"]) == 1
    assert "token 0 differs" in capsys.readouterr().out


def test_without_kernels_it_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tinyllm.native.library import load_library

    load_library.cache_clear()
    monkeypatch.setenv("TINYLLM_NATIVE", "0")
    try:
        assert main(["doctor", "--num-threads", "1"]) == 0
    finally:
        load_library.cache_clear()
    out = capsys.readouterr().out
    assert "switched off by TINYLLM_NATIVE=0" in out
    assert "\nattention           reference" in out


def test_wrong_use() -> None:
    assert main(["doctor", "--num-threads", "0"]) == 2
