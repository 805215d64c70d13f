from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.artifacts.small import edit_json, write_model
from tinyllm.cli import inspect as command
from tinyllm.errors import ConfigError, ModelNotFoundError


def run(*words: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return command.run(parser.parse_args(["inspect", *map(str, words)]))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small")


def test_text(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--max-model-len", 64, "--kv-cache-dtype", "float16") == 0
    assert capsys.readouterr().out.splitlines() == [
        "model           small (directory)",
        "architecture    LlamaForCausalLM",
        "generates       yes",
        "parameters      4,432",
        "stored as       F32: 17.3 KiB in 20 tensors",
        "layers          2 of width 16",
        "attention       4 heads, 2 KV heads",
        "MLP             width 24",
        "vocabulary      32 rows, head tied",
        "rope            default, theta 10000",
        "context         128 tokens",
        "tokenizer       tokenizer.json",
        "chat templates  default",
        "EOS ids         2, 3",
        "sampling        top_p=0.9",
        "memory          17.3 KiB weights in float32",
        "                64 B KV cache per token in float16",
        "                4.0 KiB KV cache for 64 tokens",
        "                21.3 KiB together, for one sequence and without activations",
    ]


def test_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model, "--json", "--dtype", "bfloat16") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["can_generate"] is True
    assert report["memory"]["dtype"] == "bfloat16"
    assert len(report["tensors"]) == 20


def test_a_model_that_is_not_run_says_why(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_json(model / "config.json", architectures=["Bad\x1b[31mForCausalLM"])
    assert run(model) == 0
    out = capsys.readouterr().out
    assert "generates       no: architecture 'Bad" in out
    assert "\x1b" not in out


def test_errors_are_typed(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        run(model, "--max-model-len", 1000)
    with pytest.raises(ConfigError, match="revision"):
        run(model, "--revision", "main")
    with pytest.raises(ModelNotFoundError):
        run(tmp_path / "nothing")


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys; import tinyllm.cli.inspect; "
        "assert not {'torch', 'numpy', 'pydantic', 'tinyllm.artifacts'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (1 << 42, "4.0 TiB")],
)
def test_sizes_in_human_units(size: int, text: str) -> None:
    assert command._size(size) == text
