from __future__ import annotations

import psutil
import pytest
import torch

from tinyllm.attention.memory import lazy_zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_of_any_dtype_aligned(dtype: torch.dtype) -> None:
    zeros = lazy_zeros((2, 3, 5), dtype, CPU)
    assert zeros.shape == (2, 3, 5)
    assert zeros.dtype == dtype
    assert zeros.is_contiguous()
    assert zeros.data_ptr() % 64 == 0, "a cache line, a vector"
    assert torch.equal(zeros, torch.zeros(2, 3, 5, dtype=dtype))


def test_memory_is_taken_when_it_is_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    zeros = lazy_zeros((1 << 30,), torch.bfloat16, CPU)
    assert process.memory_info().rss - before < 64 << 20
    zeros[: 64 << 20] = 1
    assert process.memory_info().rss - before >= 128 << 20


def test_memory_comes_a_small_page_at_a_time() -> None:
    """With large pages one token took 2 MB for the keys and the values of every layer, all in one step."""
    process = psutil.Process()
    before = process.memory_info().rss
    layers = [lazy_zeros((2, 4 << 20), torch.bfloat16, CPU) for _ in range(30)]
    for layer in layers:
        layer[:, 3] = 1
    assert process.memory_info().rss - before < 8 << 20
    assert all(not layer[:, 4:100].any() and layer[:, :4].sum() == 2 for layer in layers)
