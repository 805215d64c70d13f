"""Memory: how much is free, as the system, a container's limit or the GPU says, and keeping what was used."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

__all__ = ["free_memory", "keep_freed_memory", "return_freed_memory"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MAPPED_FROM = 128 << 10
"""What glibc begins with; it takes more with every larger piece that is freed."""
_LARGEST_FROM_HEAP = 32 << 20
"""The most that glibc takes for its threshold of mapping."""
_KEPT = 256 << 20


def free_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on ``device`` without swapping; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [free for free in (_available(_MEMINFO), _cgroup_left(_CGROUP)) if free is not None]
    return min(found) if found else _physical()


def _available(meminfo: Path) -> int | None:
    """Return Linux's own estimate, which counts caches that would be given up."""
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return sizes[0] if sizes else None


def _cgroup_left(cgroup: Path) -> int | None:
    """Return what a container's limit leaves (version 2); its own page cache counts as free."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + int(stat.get("inactive_file", 0)))


def _physical() -> int | None:
    """Return half of the machine's memory where nothing says how much is free (macOS)."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return None


def return_freed_memory() -> None:
    """Have glibc map what is large on its own, so that it is the system's again when it is freed.

    Call it before weights are loaded: what they were packed from would leave holes, a tenth of their size.
    """
    _call("mallopt", _M_MMAP_THRESHOLD, _MAPPED_FROM)


def keep_freed_memory() -> None:
    """Have glibc keep up to 256 MB that was freed, rather than give it back and map it anew in every step.

    Filling memory that is new to the process costs up to nine times more than filling it again. Call it when
    the weights are loaded; the holes that they left are given back. Other C libraries are left alone.
    """
    _call("malloc_trim", 0)
    _call("mallopt", _M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP)
    _call("mallopt", _M_TRIM_THRESHOLD, _KEPT)


def _call(name: str, *values: int) -> None:
    """Call a function of glibc; nothing where there is none."""
    function = getattr(ctypes.CDLL(None), name, None) if os.name == "posix" else None
    if function is not None:
        function(*values)
