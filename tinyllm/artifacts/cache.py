"""Where tinyllm keeps what it fetched, converted or built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["cache_directory"]


def cache_directory() -> Path:
    """Return the user's cache directory for tinyllm; ``TINYLLM_CACHE_DIR`` wins. It may not exist yet."""
    if chosen := os.environ.get("TINYLLM_CACHE_DIR"):
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tinyllm"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "tinyllm" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tinyllm"
