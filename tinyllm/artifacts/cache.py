"""The user's cache directory, and making a directory once: whole or not at all, whoever else tries."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from filelock import FileLock

__all__ = ["cache_directory", "make_once", "replace_directory"]

_PARTIAL: Final = ".partial-"


def cache_directory() -> Path:
    """Return where converted models are kept: ``TINYLLM_CACHE_DIR``, else the platform's usual place."""
    if explicit := os.environ.get("TINYLLM_CACHE_DIR"):
        return Path(explicit).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tinyllm"


def make_once(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill directory ``target``, unless it is there.

    ``make`` gets an empty directory, which takes the name ``target`` only when it is complete. One process
    makes, others wait for it; the system frees the lock of one that dies, and the next clears its leftovers.
    """
    if target.is_dir():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.parent / f".{target.name}.lock"):
        if target.is_dir():  # another process was first
            return
        prefix = f"{_PARTIAL}{target.name}-"
        for leftover in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        replace_directory(target, make, prefix=prefix)


def replace_directory(target: Path, make: Callable[[Path], None], *, prefix: str = _PARTIAL) -> None:
    """Let ``make`` fill a directory, and put it in the place of ``target`` when it is complete.

    Until then, and when ``make`` raises, ``target`` stays as it is.
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as work:
        made, old = Path(work, "made"), Path(work, "old")
        made.mkdir()
        make(made)
        if target.exists():
            target.rename(old)
        try:
            made.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
