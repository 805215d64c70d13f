"""Finds, builds and loads the C kernels of this directory.

They are compiled for the very processor they run on, once, into the user's cache directory, by whatever C
compiler is there (some seconds). Without a compiler, `load_library` says why and the callers stay on their
readable paths.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Final

from tqdm import tqdm

from tinyllm.artifacts.cache import cache_directory, make_once

__all__ = ["NativeUnavailableError", "build_library", "load_library"]

SOURCES: Final = ("products.c", "paged_attention.c", "elementwise.c", "decoder.c", "sampling.c")
HEADERS: Final = ("common.h", "kernels.h")
LIBRARY: Final = "kernels.so"
FLAGS: Final = ("-std=gnu11", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
BUILD_TIMEOUT: Final = 120.0

_failures: Final[dict[Path, str]] = {}
"""Why a library could not be built, by its directory."""


class NativeUnavailableError(Exception):
    """The kernels cannot be built or loaded here; the message says why. Never reaches a user as an error."""


def build_library(*, progress: bool) -> None:
    """Build the kernels if that has not been done yet, and say so on a terminal while it takes.

    Does nothing where they cannot be built: `load_library` says why.
    """
    with suppress(NativeUnavailableError):
        compiler, directory = _place()
        if directory.exists():
            return
        words = "Compiling kernels for this processor, once"
        with tqdm(
            desc=words, total=1, bar_format="{desc}: {elapsed}", disable=None if progress else True
        ) as bar:
            _make(compiler, directory)
            bar.update()


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the loaded kernels, built first if need be. Raises `NativeUnavailableError`.

    Import torch first: then both share one OpenMP runtime.
    """
    compiler, directory = _place()
    _make(compiler, directory)
    try:
        return ctypes.CDLL(str(directory / LIBRARY))
    except OSError as error:
        raise NativeUnavailableError(f"the kernels cannot be loaded: {type(error).__name__}") from None


def _place() -> tuple[str, Path]:
    """Return the compiler, and the directory of what it builds here."""
    if os.environ.get("TINYLLM_NATIVE", "1") == "0":
        raise NativeUnavailableError("switched off by TINYLLM_NATIVE=0")
    if platform.system() == "Windows":
        raise NativeUnavailableError("no build for Windows yet")
    compiler = _compiler()
    return compiler, cache_directory() / "native" / f"kernels-{_identity(compiler)}"


def _make(compiler: str, directory: Path) -> None:
    """Build the library unless that has been done; what failed in this process is not tried again."""
    if directory not in _failures:
        try:
            make_once(directory, functools.partial(_build, compiler))
            return
        except OSError as error:
            _failures[directory] = f"the kernels cannot be kept: {type(error).__name__}"
        except NativeUnavailableError as error:
            _failures[directory] = str(error)
    raise NativeUnavailableError(_failures[directory])


def _compiler() -> str:
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            return path
    raise NativeUnavailableError("no C compiler (install gcc or clang for the fast CPU kernels)")


def _identity(compiler: str) -> str:
    """Name a build by all that goes into it: sources, flags, compiler and processor."""
    digest = hashlib.sha256()
    for name in (*HEADERS, *SOURCES):
        digest.update((files("tinyllm.native") / name).read_bytes())
    digest.update(_version(compiler) + " ".join(FLAGS).encode() + _processor())
    return digest.hexdigest()[:20]


@functools.cache
def _version(compiler: str) -> bytes:
    try:
        return subprocess.run(  # noqa: S603  the user's own compiler
            [compiler, "--version"], capture_output=True, check=True, timeout=BUILD_TIMEOUT
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailableError(f"the C compiler does not run: {type(error).__name__}") from None


def _processor() -> bytes:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)})).encode()


def _build(compiler: str, directory: Path) -> None:
    """Compile the sources into ``directory``."""
    for name in (*HEADERS, *SOURCES):
        (directory / name).write_bytes((files("tinyllm.native") / name).read_bytes())
    try:
        subprocess.run(  # noqa: S603  the user's own compiler
            [compiler, *FLAGS, "-o", LIBRARY, *SOURCES, "-lm"],
            cwd=directory,
            capture_output=True,
            check=True,
            timeout=BUILD_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().splitlines()
        raise NativeUnavailableError(
            f"the C compiler failed: {reason[0] if reason else 'no message'}"
        ) from None
    except subprocess.SubprocessError as error:
        raise NativeUnavailableError(f"the C compiler failed: {type(error).__name__}") from None
