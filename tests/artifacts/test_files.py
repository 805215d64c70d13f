"""Files that options name: regular ones of a sane size, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinyllm.artifacts.files import read_option_file
from tinyllm.errors import ConfigError


def test_a_file_is_read_through_links(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("é", encoding="utf-8")
    (tmp_path / "link").symlink_to("real")
    assert read_option_file(tmp_path / "link", "the file", 2) == "é"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "the file cannot be read: missing"),
        (".", "the file cannot be read: .*directory"),
        ("pipe", "the file is not a regular file: pipe"),
        ("zero", "the file is not a regular file: zero"),
        ("large", "the file has more than the 10 bytes"),
        ("binary", r"the file is not UTF-8 text \(byte 1\)"),
        ("a\0b", "the file cannot be read"),
        ("a" * 5000, "the file cannot be read"),
    ],
)
def test_anything_else_is_refused_at_once(name: str, message: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_text("x" * 11)
    (tmp_path / "binary").write_bytes(b"a\xff")
    with pytest.raises(ConfigError, match=message) as caught:
        read_option_file(tmp_path / name, "the file", 10)
    assert str(tmp_path) not in str(caught.value)
    assert len(str(caught.value)) < 200
