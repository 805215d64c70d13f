"""What reading a hostile file may cost: one typed error, within 2 s and 256 MB."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tinyllm.bench.environment import peak_memory
from tinyllm.errors import ArtifactError

__all__ = ["MAX_BYTES", "MAX_SECONDS", "refused_within_limits"]

MAX_SECONDS: Final = 2.0
MAX_WAIT: Final = 20.0
"""Nothing may block; the machine may have other work, so this is not the measure of speed."""
MAX_BYTES: Final = 256 << 20


def refused_within_limits(read: Callable[[], object], expected: type[ArtifactError]) -> ArtifactError:
    """Call ``read``, which must raise just ``expected`` and keep to the limits; return the error.

    Memory is measured twice: as the process has it, which counts what libraries allocate outside Python, and
    as Python counts it, which sees what comes from memory that the process already had.
    """
    resident_before = _forget_peak()
    started, cpu_started = time.perf_counter(), time.process_time()
    with pytest.raises(ArtifactError) as caught:
        read()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    resident = peak_memory() - resident_before

    tracemalloc.start()  # on its own: it makes everything several times slower
    try:
        with pytest.raises(expected):
            read()
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert type(caught.value) is expected
    assert cpu_seconds < MAX_SECONDS
    assert seconds < MAX_WAIT
    assert resident < MAX_BYTES
    assert traced < MAX_BYTES
    return caught.value


def _forget_peak() -> int:
    """Make the memory that the process has now its peak, where the system can; return it, in bytes."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()
