"""`use_huge_pages`: memory that is there already, the weights above all, in pages of 2 MB.

A decode step reads every weight once, and with pages of 4 kB the processor looks up an address for every few
lines it reads. Linux gives large pages only to those who ask as they allocate, which PyTorch does not for
most weights; since 6.1 it also moves what is there (``MADV_COLLAPSE``).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["use_huge_pages"]

_MAPS: Final = Path("/proc/self/maps")
_COLLAPSE: Final = 25
_SIZE: Final = 2 << 20
_NICE: Final = 10


def use_huge_pages() -> threading.Thread | None:
    """Begin to move the process's memory of now into large pages, and return the thread that does it.

    It takes about a second for half a gigabyte, on one thread of low priority, beside whatever else goes on.
    Where the system cannot, nothing changes; None where there is nothing to move.
    """
    ranges = list(_whole_pages())
    if not ranges:
        return None
    thread = threading.Thread(target=_collapse, args=(ranges,), name="tinyllm-huge-pages", daemon=True)
    thread.start()
    return thread


def _whole_pages() -> Iterator[tuple[int, int]]:
    """Yield start and size of each stretch of private memory, cut to whole large pages."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if fields[1] != "rw-p" or fields[4] != "0" or fields[5:] not in ([], ["[heap]"]):
            continue
        start, end = (int(number, 16) for number in fields[0].split("-"))
        start, end = -(-start // _SIZE) * _SIZE, end // _SIZE * _SIZE
        if start < end:
            yield start, end - start


def _collapse(ranges: list[tuple[int, int]]) -> None:
    """Move page by page, so that nobody waits for long. What cannot be moved, or has gone, stays as it is."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, size in ranges:
        for address in range(start, start + size, _SIZE):
            madvise(address, _SIZE, _COLLAPSE)
