"""Memory is moved into large pages where the system can, and keeps what it holds."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tinyllm.runner import huge_pages
from tinyllm.runner.huge_pages import private_pages, use_huge_pages

MB = 1 << 20


def large_pages() -> int:
    """Return this process's bytes in large pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return 0


def can_collapse() -> bool:
    if sys.platform != "linux":
        return False
    memory = mmap.mmap(-1, 8 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(bytes(8 * MB))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(madvise(-(-address // (2 * MB)) * 2 * MB, 2 * MB, 25) == 0)


@pytest.mark.skipif(not can_collapse(), reason="this system cannot")
def test_memory_is_moved_and_keeps_what_it_holds() -> None:
    others = private_pages()
    memory = mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = np.frombuffer(memory, dtype=np.int64)
    numbers[:] = np.arange(len(numbers))
    before = large_pages()
    thread = use_huge_pages(private_pages() - others)
    assert thread is not None
    thread.join()
    assert large_pages() - before >= 28 * MB
    assert (numbers == np.arange(len(numbers))).all()


@pytest.mark.skipif(not can_collapse(), reason="this system cannot")
def test_what_has_holes_is_not_filled() -> None:
    others = private_pages()
    memory = mmap.mmap(-1, 32 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = np.frombuffer(memory, dtype=np.uint8)
    numbers[:: 4 * mmap.PAGESIZE] = 1
    before = large_pages()
    thread = use_huge_pages(private_pages() - others)
    assert thread is not None
    thread.join()
    assert large_pages() == before


def test_where_there_is_nothing_to_read_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huge_pages, "_MAPS", tmp_path / "none")
    before = threading.active_count()
    assert private_pages() == set()
    assert use_huge_pages(private_pages()) is None
    assert threading.active_count() == before


def test_only_private_memory_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "10000000-10500000 rw-p 00000000 00:00 0 \n"
        "20000000-20600000 rw-p 00000000 00:00 0          [heap]\n"
        "30000000-30600000 r--p 00000000 00:00 0 \n"
        "40000000-40600000 rw-p 00000000 fe:00 1234       /usr/lib/some.so\n"
        "50000000-50600000 rw-s 00000000 00:00 0 \n"
        "60100000-60200000 rw-p 00000000 00:00 0 \n"
        "70000000-70600000 rw-p 00000000 00:00 0          [stack]\n"
    )
    monkeypatch.setattr(huge_pages, "_MAPS", maps)
    expected = {*range(0x10000000, 0x10400000, 2 * MB), *range(0x20000000, 0x20600000, 2 * MB)}
    assert private_pages() == expected
