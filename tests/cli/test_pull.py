"""``tinyllm pull``."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.artifacts.hub_server import Hub
from tests.artifacts.small import write_model
from tinyllm.artifacts.hub import fetch_snapshot
from tinyllm.cli.main import main

COMMIT = "c" * 40


def test_pull_fetches_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {file.name: file.read_bytes() for file in write_model(tmp_path / "model").iterdir()}
    hub = Hub({"org/tiny": {COMMIT: files}}, {("org/tiny", "v1"): COMMIT})
    server = hub.start()
    monkeypatch.setattr("tinyllm.artifacts.hub.fetch_snapshot", partial(fetch_snapshot, endpoint=hub.url))
    try:
        code = main(
            ["pull", "org/tiny", "--revision", "v1", "--cache-dir", str(tmp_path / "cache"), "--no-progress"]
        )
    finally:
        server.shutdown()
        server.server_close()
    assert code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"org/tiny ({COMMIT}): ")
    assert str(tmp_path / "cache") in said


def test_pull_refuses_a_local_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", str(write_model(tmp_path / "model"))]) == 2
    assert "on this machine already" in capsys.readouterr().err
