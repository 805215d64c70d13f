"""`use_huge_pages`: memory that is there already, such as weights that were loaded, in pages of 2 MB.

A decode step reads every weight once, and with pages of 4 kB the processor looks up an address for every few
lines it reads. Linux gives large pages only to those who ask as they allocate, which PyTorch does not for
most weights; since 6.1 it also moves what is there (``MADV_COLLAPSE``).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["private_pages", "use_huge_pages"]

_MAPS: Final = Path("/proc/self/maps")
_COLLAPSE: Final = 25
_SIZE: Final = 2 << 20
_NICE: Final = 10


def private_pages() -> set[int]:
    """Return the address of every 2 MB that only this process has; none where the system does not say."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return set()
    pages: set[int] = set()
    for line in lines:
        fields = line.split()
        if fields[1] != "rw-p" or fields[4] != "0" or fields[5:] not in ([], ["[heap]"]):
            continue
        start, end = (int(number, 16) for number in fields[0].split("-"))
        pages.update(range(-(-start // _SIZE) * _SIZE, end // _SIZE * _SIZE, _SIZE))
    return pages


def use_huge_pages(pages: Iterable[int]) -> threading.Thread | None:
    """Begin to move what is in these 2 MB into one page each, and return the thread that does it.

    It takes about a second for half a gigabyte, on one thread of low priority, beside whatever else goes on.
    Where the system cannot, nothing changes; None where there is nothing to move.
    """
    addresses = sorted(pages)
    if not addresses:
        return None
    thread = threading.Thread(target=_collapse, args=(addresses,), name="tinyllm-huge-pages", daemon=True)
    thread.start()
    return thread


def _collapse(addresses: list[int]) -> None:
    """Move page by page, so that nobody waits for long. What cannot be moved, or has gone, stays as it is.

    So does what has holes, as they would be filled.
    """
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    is_there = (ctypes.c_ubyte * (_SIZE // mmap.PAGESIZE))()
    for address in addresses:
        if libc.mincore(address, _SIZE, is_there) == 0 and all(each & 1 for each in is_there):
            libc.madvise(address, _SIZE, _COLLAPSE)
