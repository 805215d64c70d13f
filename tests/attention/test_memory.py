from __future__ import annotations

import psutil
import pytest
import torch

from tinyllm.attention.memory import ALIGNMENT, lazy_zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_of_any_dtype_aligned(dtype: torch.dtype) -> None:
    zeros = lazy_zeros((2, 3, 5), dtype, CPU)
    assert zeros.shape == (2, 3, 5)
    assert zeros.dtype == dtype
    assert zeros.is_contiguous()
    assert zeros.data_ptr() % ALIGNMENT == 0
    assert torch.equal(zeros, torch.zeros(2, 3, 5, dtype=dtype))


def test_memory_is_taken_when_it_is_written() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    zeros = lazy_zeros((1 << 30,), torch.bfloat16, CPU)
    assert process.memory_info().rss - before < 64 << 20
    zeros[: 64 << 20] = 1
    assert process.memory_info().rss - before >= 128 << 20
