"""`largest`: the most likely token of every row of logits, and whether it means anything, in one pass."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tinyllm.native.library import NativeUnavailableError, load_library

__all__ = ["largest"]


def largest(logits: Tensor) -> tuple[list[float], list[int]]:
    """Return each row's largest of float32 ``[rows, columns]``, and where it is: the first among equals.

    A row with a NaN has NaN for its largest.
    """
    function = _native() if logits.device.type == "cpu" and logits.stride(1) == 1 else None
    if function is None:
        values, indices = logits.max(dim=-1)
        return values.tolist(), indices.tolist()
    rows, columns = logits.shape
    tops, places = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.int64)
    function(
        logits.data_ptr(),
        rows,
        columns,
        logits.stride(0),
        tops.ctypes.data,
        places.ctypes.data,
        torch.get_num_threads(),
    )
    return tops.tolist(), places.tolist()


@functools.cache
def _native() -> Callable[..., None] | None:
    """Return the function of ``native/sampling.c``, where it can be built: several times faster."""
    try:
        function = load_library().tinyllm_largest
    except NativeUnavailableError:
        return None
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    function.argtypes = (pointer, int64, int64, int64, pointer, pointer, ctypes.c_int32)
    function.restype = None
    return function
