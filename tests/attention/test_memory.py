"""A KV cache takes memory as it is written, a little at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tinyllm.attention.memory import lazy_zeros

STATM = Path("/proc/self/statm")


def resident() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not STATM.exists(), reason="this system does not say what is resident")
def test_memory_comes_a_small_page_at_a_time() -> None:
    """With large pages one token took 2 MB for the keys and the values of every layer, all in one step."""
    before = resident()
    layers = [lazy_zeros((2, 4 << 20), torch.bfloat16, torch.device("cpu")) for _ in range(30)]
    for layer in layers:
        layer[:, 3] = 1
    assert resident() - before < 4 << 20
    assert all(not layer[:, 4:100].any() and layer[:, :4].sum() == 2 for layer in layers)


def test_shape_and_dtype_are_those_asked_for() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        cache = lazy_zeros((2, 3, 5), dtype, torch.device("cpu"))
        assert (cache.shape, cache.dtype, cache.is_contiguous()) == ((2, 3, 5), dtype, True)
        assert cache.data_ptr() % 64 == 0
