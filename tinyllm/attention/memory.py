"""Memory for KV caches."""

from __future__ import annotations

import math

import numpy as np
import torch

__all__ = ["lazy_zeros"]

ALIGNMENT = 64  # one cache line, one vector


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros that, on a CPU, take no memory before they are written.

    ``torch.zeros`` writes its zeros, which makes a large cache slow to allocate and resident at once; these
    are the system's own, mapped when first touched.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = torch.from_numpy(np.zeros(nbytes + ALIGNMENT, dtype=np.uint8))
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + nbytes].view(dtype).view(shape)
