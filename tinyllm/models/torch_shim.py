"""PyTorch's products for C code: functions of its C interface, and handles of tensors.

The interface (``torch/csrc/inductor/aoti_torch/c/shim.h``) is what PyTorch's own compiled models are linked
to, so it is kept stable. Only the way from a Python tensor to a handle is private, and named here alone.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from pathlib import Path
from typing import Final

import torch

from tinyllm.models.linear import Linear

__all__ = ["LinearHandle", "TorchAPI", "TorchShim"]

_SUFFIX: Final = "dylib" if sys.platform == "darwin" else "so"
_LIBRARY: Final = Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{_SUFFIX}"
_FUNCTIONS: Final = {
    "linear": "aoti_torch_cpu__linear_pointwise",
    "from_blob": "aoti_torch_create_tensor_from_blob",
    "data_pointer": "aoti_torch_get_data_ptr",
    "release": "aoti_torch_delete_tensor_object",
}
"""By their names in ``torch_api`` of ``native/kernels.h``."""

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class TorchAPI(ctypes.Structure):
    """``torch_api``"""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _FUNCTIONS),
        ("dtype", ctypes.c_int32),
        ("device_type", ctypes.c_int32),
    )


class LinearHandle(ctypes.Structure):
    """``linear``"""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class TorchShim:
    """The functions, for one dtype, and the handles made with them, which end with this.

    Raises `OSError` or `AttributeError` where PyTorch has no such interface.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        library = ctypes.CDLL(str(_LIBRARY))
        functions = {
            field: ctypes.cast(getattr(library, name), ctypes.c_void_p) for field, name in _FUNCTIONS.items()
        }
        name = str(dtype).removeprefix("torch.")
        self.api = TorchAPI(
            **functions,
            dtype=getattr(library, f"aoti_torch_dtype_{name}")(),
            device_type=library.aoti_torch_device_type_cpu(),
        )
        self._release = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.api.release)

    def linear(self, linear: Linear) -> LinearHandle:
        """Return handles of a packed layer's weight and bias."""
        bias = None if linear.bias is None else self.handle(linear.bias)
        return LinearHandle(self.handle(linear.weight), bias)

    def handle(self, tensor: torch.Tensor) -> int:
        """Return a new handle, which keeps the tensor alive."""
        capsule = torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor)
        handle: int = _capsule_pointer(capsule, None)
        # Not as the interpreter leaves: an engine's thread may be in the middle of a step.
        weakref.finalize(self, self._release, handle).atexit = False
        return handle
