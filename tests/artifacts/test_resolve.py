from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.artifacts.small import write_model
from tinyllm.artifacts import demo, gguf, hub
from tinyllm.artifacts.resolve import fetch, open_model
from tinyllm.errors import ConfigError, ModelNotFoundError


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_is_the_demo_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(demo, "open_demo", lambda **options: calls.append(options))
    open_model(None, cache_dir=tmp_path, offline=True, progress=False)
    assert calls == [{"cache_dir": tmp_path, "offline": True, "progress": False}]


def test_a_directory_comes_before_a_hub_id(in_tmp_path: Path) -> None:
    write_model(in_tmp_path / "org" / "name")
    artifacts = open_model("org/name")
    assert (artifacts.kind, artifacts.name) == ("directory", "name")


def test_the_current_directory_has_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(write_model(tmp_path / "mine"))
    assert open_model(".").name == "mine"


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_model(tmp_path / "mine")
    assert open_model("~/mine").name == "mine"


def test_a_gguf_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "m.GGUF"
    path.write_bytes(b"GGUF")
    opened: list[Path] = []
    monkeypatch.setattr(gguf, "open_gguf", opened.append)
    open_model(str(path))
    assert opened == [path]


def test_a_hub_id_is_fetched_and_pinned(monkeypatch: pytest.MonkeyPatch, in_tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []

    def fetch_snapshot(repo_id: str, **options: Any) -> tuple[Path, str]:
        calls.append((repo_id, options))
        return write_model(in_tmp_path / "snapshot"), "0123abc"

    monkeypatch.setattr(hub, "fetch_snapshot", fetch_snapshot)
    options: dict[str, Any] = {
        "revision": "main",
        "token": "secret",
        "cache_dir": in_tmp_path,
        "offline": True,
        "progress": False,
    }
    artifacts = open_model("org/name-1.5", **options)
    assert (artifacts.kind, artifacts.name, artifacts.revision) == ("hub", "org/name-1.5", "0123abc")
    assert calls == [("org/name-1.5", options)]


@pytest.mark.parametrize(
    "model",
    [
        "",
        "gpt2",
        "no/such/directory",
        "./no/such",
        "/no/such",
        "../up",
        "org/name/more",
        "org/../name",
        "org/na--me",
        "org/name.gguf",
        "missing.gguf",
        "org/na me",
        "org/name\n",
        "org/n\0",
        "a" * 5000,
        "a/" + "b" * 5000,
        "https://example.com/org/name",
        "orgé/name",
    ],
)
def test_anything_else_names_the_accepted_forms(model: str, in_tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"directory.*\.gguf.*org/name.*demo") as caught:
        open_model(model, offline=True)
    assert len(str(caught.value)) < 400


def test_an_ordinary_file_is_no_model(in_tmp_path: Path) -> None:
    (in_tmp_path / "a").mkdir()
    (in_tmp_path / "a" / "b").write_text("text")
    with pytest.raises(ModelNotFoundError, match="give a directory"):
        open_model("a/b")


def test_a_revision_is_for_the_hub_only(in_tmp_path: Path) -> None:
    write_model(in_tmp_path / "mine")
    (in_tmp_path / "m.gguf").write_bytes(b"")
    for model in (None, "mine", "m.gguf"):
        with pytest.raises(ConfigError, match="revision is for models of the Hub"):
            open_model(model, revision="main")


def test_fetch_checks_nothing(in_tmp_path: Path) -> None:
    (in_tmp_path / "empty").mkdir()
    location = fetch("empty")
    assert (location.kind, location.name, location.revision) == ("directory", "empty", None)
