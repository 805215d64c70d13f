"""The real ``huggingface_hub`` library against a stand-in for the Hub."""

from __future__ import annotations

import errno
import json
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.artifacts.hub_server import Hub
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.hub import fetch_snapshot
from tinyllm.artifacts.resolve import open_model
from tinyllm.errors import ArtifactError, ModelDownloadError, ModelNotFoundError, UnsupportedModelError

REPO = "org/tiny"
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture(scope="module")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A small model in three shards."""
    from tests.artifacts.gguf_files import random_weights, write_model
    from tinyllm.artifacts.convert import write_directory, write_safetensors
    from tinyllm.artifacts.gguf import read_gguf

    root = tmp_path_factory.mktemp("hub")
    source = read_gguf(write_model(root / "m.gguf", random_weights("qwen3"), arch="qwen3"))
    (root / "out").mkdir()
    write_directory(source, root / "out", progress=False)
    (root / "out" / "model.safetensors").unlink()
    write_safetensors(
        source.artifacts.weights, root / "out", dtype="float32", progress=False, shard_bytes=2_000_000
    )
    return {file.name: file.read_bytes() for file in (root / "out").iterdir()}


@pytest.fixture
def hub(model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    unwanted = dict.fromkeys(
        ("pytorch_model.bin", "model.pt", "model.gguf", "onnx/model.onnx", "README.md", "tf_model.h5"), b"no"
    )
    unwanted["original/model.safetensors"] = b"no"
    unwanted["consolidated.safetensors"] = b"no"
    files = model_files | unwanted
    changed = files | {"generation_config.json": b'{"temperature": 0.5}'}
    hub = Hub({REPO: {OLD: files, NEW: changed}}, {(REPO, "main"): OLD, (REPO, "dev"): NEW})
    server = hub.start()
    yield hub
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library waits longer and longer between tries; here it tries again at once."""
    clock = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    for module in ("utils._http", "file_download"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", clock)


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    def call(repo: str = REPO, **options: Any) -> tuple[Path, str]:
        options = {"cache_dir": tmp_path / "cache", "progress": False, "endpoint": hub.url, **options}
        return fetch_snapshot(repo, **options)

    return call


Fetch = Callable[..., tuple[Path, str]]


def test_only_the_needed_files_are_fetched(hub: Hub, fetch: Fetch, model_files: dict[str, bytes]) -> None:
    directory, commit = fetch()
    assert commit == OLD
    assert hub.fetched() == set(model_files)
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == model_files
    model = open_directory(directory, name=REPO, kind="hub", revision=commit)
    assert model.config.architecture == "Qwen3ForCausalLM"


def test_all_files_are_of_one_commit_even_if_the_branch_moves(hub: Hub, fetch: Fetch) -> None:
    def move(method: str, path: str) -> None:
        hub.branches[REPO, "main"] = NEW

    hub.after = move
    directory, commit = fetch()
    assert commit == OLD
    assert "temperature" not in (directory / "generation_config.json").read_text()
    assert len(hub.requests) > 5
    by_branch = [path for _, path, _ in hub.requests if OLD not in path]
    assert by_branch == [f"/api/models/{REPO}/revision/main"], "the branch is asked for once"
    assert fetch()[1] == NEW


@pytest.mark.parametrize("revision", ["dev", NEW])
def test_a_revision_is_a_branch_or_a_commit(revision: str, fetch: Fetch) -> None:
    directory, commit = fetch(revision=revision)
    assert commit == NEW
    assert json.loads((directory / "generation_config.json").read_text()) == {"temperature": 0.5}


def test_nothing_is_fetched_twice(hub: Hub, fetch: Fetch) -> None:
    fetch()
    hub.requests.clear()
    fetch()
    assert not hub.fetched()


def test_a_single_file_is_preferred_to_shards(hub: Hub, fetch: Fetch) -> None:
    hub.repos[REPO][OLD]["model.safetensors"] = b"whole"
    fetch()
    assert {name for name in hub.fetched() if name.endswith("safetensors")} == {"model.safetensors"}


def test_the_token_is_sent(hub: Hub, fetch: Fetch) -> None:
    hub.token = "secret"
    with pytest.raises(ModelNotFoundError, match="HF_TOKEN"):
        fetch()
    with pytest.raises(ModelNotFoundError, match="HF_TOKEN") as wrong:
        fetch(token="a-guess")
    assert "a-guess" not in str(wrong.value)
    assert fetch(token="secret")[1] == OLD


def test_a_broken_transfer_goes_on_where_it_stopped(
    hub: Hub, fetch: Fetch, model_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = next(name for name in sorted(model_files) if name.endswith(".safetensors"))
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 14)
    hub.cut_once[name] = 100_000
    directory, _ = fetch()
    assert (directory / name).read_bytes() == model_files[name]
    ranges = [
        headers.get("Range") for method, path, headers in hub.requests if method == "GET" and name in path
    ]
    assert ranges[0] is None
    assert len(ranges) == 2
    assert 0 < int(str(ranges[1]).removeprefix("bytes=").rstrip("-")) <= 100_000


def test_offline_uses_the_cache_only(hub: Hub, fetch: Fetch) -> None:
    online = fetch()
    hub.requests.clear()
    assert fetch(offline=True) == online
    assert fetch(offline=True, revision=OLD) == online
    assert not hub.requests


@pytest.mark.parametrize("revision", ["dev", "refs/pr/1", NEW])
def test_offline_knows_which_commit_a_revision_was(revision: str, hub: Hub, fetch: Fetch) -> None:
    hub.branches[REPO, "refs/pr/1"] = NEW
    fetched = fetch(revision=revision)
    files = [file for file in (fetched[0].parents[1] / "refs").rglob("*") if file.is_file()]
    assert [file.read_text() for file in files] == ([] if revision == NEW else [NEW])
    assert fetch(revision=revision, offline=True) == fetched


def test_offline_by_the_environment(hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelDownloadError, match="offline mode is on"):
        fetch()
    assert not hub.requests


@pytest.mark.parametrize("revision", [None, "dev", NEW])
def test_offline_and_not_cached(hub: Hub, fetch: Fetch, revision: str | None) -> None:
    if revision:
        fetch()
    with pytest.raises(ModelDownloadError, match="not in the cache, and offline mode is on"):
        fetch(offline=True, revision=revision)


def test_offline_with_a_part_only(fetch: Fetch, model_files: dict[str, bytes]) -> None:
    directory, _ = fetch()
    shard = next(name for name in sorted(model_files) if name.endswith(".safetensors"))
    (directory / shard).unlink()
    with pytest.raises(ModelDownloadError, match=f"only a part of it is in the cache.*{shard}"):
        fetch(offline=True)


@pytest.mark.parametrize(
    ("repo", "options", "words"),
    [
        ("org/missing", {}, "there is no model org/missing"),
        (REPO, {"revision": "v9"}, "has no revision 'v9'"),
        (REPO, {"revision": "c" * 40}, "has no revision"),
        ("a/b/c", {}, "not a model id"),
    ],
)
def test_what_is_not_there(repo: str, options: dict[str, Any], words: str, fetch: Fetch) -> None:
    with pytest.raises(ModelNotFoundError, match=words):
        fetch(repo, **options)


@pytest.mark.parametrize(
    ("status", "headers", "error", "words"),
    [
        (401, {}, ModelNotFoundError, "private"),
        (403, {"X-Error-Code": "GatedRepo"}, ModelNotFoundError, "gated"),
        (403, {}, ModelNotFoundError, "private"),
        (404, {"X-Error-Code": "RepoNotFound"}, ModelNotFoundError, "there is no model"),
        (500, {}, ModelDownloadError, "HTTP status 500"),
    ],
)
def test_http_faults(
    status: int, headers: dict[str, str], error: type[ArtifactError], words: str, hub: Hub, fetch: Fetch
) -> None:
    hub.fail = lambda method, path: (status, headers)
    with pytest.raises(error, match=words) as caught:
        fetch()
    assert hub.url not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)


def test_a_fault_in_the_middle_keeps_what_came(hub: Hub, fetch: Fetch, model_files: dict[str, bytes]) -> None:
    last = max(name for name in model_files if name.endswith(".safetensors"))
    hub.fail = lambda method, path: (404, {"X-Error-Code": "EntryNotFound"}) if last in path else None
    with pytest.raises(ArtifactError):
        fetch()
    hub.fail = lambda method, path: None
    hub.requests.clear()
    fetch()
    assert last in hub.fetched()
    assert "config.json" not in hub.fetched()


def test_the_network_is_down(hub: Hub, fetch: Fetch) -> None:
    with pytest.raises(ModelDownloadError, match="check the network"):
        fetch(endpoint="http://127.0.0.1:9")


def test_a_hub_that_does_not_answer(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the system accepts, and nobody reads
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ModelDownloadError, match=r"[Tt]ime.*check the network"):
            fetch(endpoint=endpoint)


def test_the_disk_is_full(hub: Hub, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    with pytest.raises(ModelDownloadError, match="disk is full") as caught:
        fetch()
    assert "/somewhere" not in str(caught.value)


def test_no_safetensors(hub: Hub, fetch: Fetch) -> None:
    files = hub.repos[REPO][OLD]
    for name in [name for name in files if name.startswith(("model-", "model.safetensors"))]:
        del files[name]
    with pytest.raises(UnsupportedModelError, match="GGUF files"):
        fetch()
    del files["model.gguf"]
    with pytest.raises(UnsupportedModelError, match="no pickles"):
        fetch()


def test_no_config(hub: Hub, fetch: Fetch) -> None:
    del hub.repos[REPO][OLD]["config.json"]
    with pytest.raises(ModelNotFoundError, match=r"has no config\.json"):
        fetch()


def test_progress_bars_are_shown_and_hidden(
    fetch: Fetch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fetch()
    assert capfd.readouterr().err == ""
    fetch(progress=True, cache_dir=tmp_path / "other")
    assert "%" in capfd.readouterr().err


def test_open_model_of_the_hub(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tinyllm.artifacts.hub.fetch_snapshot", partial(fetch_snapshot, endpoint=hub.url))
    model = open_model(REPO, cache_dir=tmp_path, progress=False)
    assert (model.name, model.kind, model.revision) == (REPO, "hub", OLD)
