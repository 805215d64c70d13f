"""``tinyllm convert``."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import pytest

from tests.artifacts.gguf_files import random_weights, write_model
from tinyllm.artifacts import convert
from tinyllm.artifacts.directory import open_directory
from tinyllm.cli.main import main
from tinyllm.text.tokenizer import load_tokenizer


def test_convert_writes_a_whole_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_model(tmp_path / "m.gguf", random_weights("qwen3"), arch="qwen3")
    out = tmp_path / "out"
    command = ["convert", str(source), str(out), "--dtype", "bfloat16", "--no-progress"]
    assert main(command) == 0
    assert capsys.readouterr() == (f"wrote {out}\n", "")
    model = open_directory(out)
    assert model.config.dtype == "bfloat16"
    assert model.tokenizer is not None
    assert load_tokenizer(model.tokenizer).encode("abba") == [3, 5, 4]
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


@pytest.mark.parametrize("is_terminal", [True, False])
def test_convert_shows_progress_on_a_terminal(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    source = write_model(tmp_path / "m.gguf", random_weights("qwen3"), arch="qwen3")
    assert main(["convert", str(source), str(tmp_path / "out")]) == 0
    assert ("Converting" in capsys.readouterr().err) == is_terminal


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(convert, "replace_directory", full)
    source = write_model(tmp_path / "m.gguf", random_weights("qwen3"), arch="qwen3")
    assert main(["convert", str(source), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "tinyllm convert: 'out' cannot be written: No space left on device\n"


def test_convert_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04")
    assert main(["convert", str(tmp_path / "m.gguf"), str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err == "tinyllm convert: m.gguf: not a GGUF file (wrong magic)\n"
