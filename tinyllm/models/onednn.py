"""`OneDNN`: its product of a block, for C code, where PyTorch and the processor have it.

PyTorch's compiler generates calls of the same function, so it is exported, but under a C++ name that has the
types of its parameters: should they change, it is not found, and products take another way (`Linear`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Final

import torch

__all__ = ["OneDNN"]

_SUFFIX: Final = "dylib" if sys.platform == "darwin" else "so"
_LIBRARY: Final = Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{_SUFFIX}"
_BRGEMM: Final = {
    torch.float32: "_ZN2at6native7cpublas6brgemmEllllllbPKfS3_Pfb",
    torch.bfloat16: "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb",
}
_RELEASE: Final = "_ZN2at6native7cpublas14brgemm_releaseEb"
_PROCESSOR: Final = {torch.float32: "_is_avx2_supported", torch.bfloat16: "_is_avx512_bf16_supported"}
"""What says whether the processor can, among the functions of `torch.cpu`."""
_LIMITS: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""With these in the environment, oneDNN may refuse what the processor can."""


class OneDNN(ctypes.Structure):
    """``onednn`` of ``native/kernels.h``.

    What it does not support ends the process, for C cannot catch what C++ throws. So everything is asked
    beforehand: `find` by those who load weights, `check` by those who multiply.
    """

    _fields_ = (("brgemm", ctypes.c_void_p), ("release", ctypes.c_void_p), ("bf16", ctypes.c_int32))

    @classmethod
    def find(cls, dtype: torch.dtype) -> OneDNN | None:
        """Return the functions for one dtype, or None where there are none."""
        if dtype not in _BRGEMM or platform.machine() not in ("x86_64", "AMD64"):
            return None
        if not _is_enabled() or any(name in os.environ for name in _LIMITS):
            return None
        if not getattr(torch.cpu, _PROCESSOR[dtype], bool)():
            return None
        library = ctypes.CDLL(str(_LIBRARY))
        try:
            brgemm, release = getattr(library, _BRGEMM[dtype]), getattr(library, _RELEASE)
        except AttributeError:
            return None
        pointers = (ctypes.cast(function, ctypes.c_void_p) for function in (brgemm, release))
        return cls(*pointers, dtype == torch.bfloat16)

    def check(self) -> None:
        """Raise `RuntimeError` where the application has switched oneDNN off since."""
        if not _is_enabled():
            raise RuntimeError("torch.backends.mkldnn was switched off after the model had been loaded")


def _is_enabled() -> bool:
    """Whether PyTorch has oneDNN and may use it."""
    return bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)  # type: ignore[no-untyped-call]
