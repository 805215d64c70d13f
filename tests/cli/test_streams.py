"""Standard streams that are closed, full or not of UTF-8: one line, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a shell and /dev/full")


def shell(command: str, model: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run ``command``; in it $T is tinyllm and $M the model."""
    env = {**os.environ, "T": f"{sys.executable} -m tinyllm", "M": str(model), **variables}
    return subprocess.run(["/bin/sh", "-c", command], env=env, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("$T tokenize --model $M hi >/dev/full", 1, "tokenize: No space left on device"),
        ("$T inspect $M >/dev/full", 1, "inspect: No space left on device"),
        ("$T tokenize --model $M hi >&-", 2, "standard output is closed"),
        ("$T generate --model $M -q <&-", 2, "prompt is empty"),
        ("printf '\\377' | PYTHONIOENCODING=utf-8:strict $T tokenize --model $M -", 2, "is not utf-8 text"),
        ("$T tokenize --model $M - <&-", 0, "0 tokens"),
        ("$T tokenize --model $M hi 2>&-", 0, ""),
    ],
)
def test_each_is_one_line(command: str, code: int, message: str, tiny_llama: Path) -> None:
    run = shell(command, tiny_llama)
    assert run.returncode == code, run.stderr
    assert message in run.stderr.decode()
    assert len(run.stderr.splitlines()) <= 1


def test_letters_that_the_encoding_lacks_are_question_marks(tiny_llama: Path) -> None:
    run = shell("$T tokenize --model $M 'é🫠 x'", tiny_llama, PYTHONIOENCODING="ascii")
    assert run.returncode == 0, run.stderr
    assert b"?" in run.stdout
