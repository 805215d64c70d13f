"""What a number depends on beside the code: the machine, its settings, and what else ran on it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import tinyllm

__all__ = [
    "Disturbance",
    "available_memory",
    "cpu_features",
    "cpu_model",
    "environment",
    "machine",
    "peak_memory",
]

_SETTINGS: Final = ("OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "MALLOC_", "TORCH", "TINYLLM_NATIVE")
"""Variables that change speed. Not all of ours: some are secrets."""
_FEATURES: Final = (
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "bf16", "i8mm"),
)


def environment(num_threads: int | None = None) -> dict[str, Any]:
    """Return what belongs beside a measurement of the engine: `machine`, PyTorch and its threads."""
    import torch

    from tinyllm.runner.device import default_num_threads

    return machine() | {
        "physical_cores": default_num_threads(),
        "threads": num_threads or default_num_threads(),
        "torch": torch.__version__,
    }


def machine() -> dict[str, Any]:
    """Return what belongs beside every measurement, ready for JSON. No names of people or machines."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpu_features": cpu_features(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "tinyllm": _version("tinyllm"),
        "commit": _commit(),
        "settings": {
            key: value
            for key, value in sorted(os.environ.items())
            if key.startswith(_SETTINGS) and not value.startswith("/")
        },
        "load_average": _load_average(),
    }


def cpu_model() -> str:
    """Return the processor's name."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Return the vector instructions that kernels may use, where the system says which there are."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("flags", "Features")):
            have = set(line.partition(":")[2].split())
            return [name for name in _FEATURES if name in have]
    return []


def peak_memory(pid: int | str = "self") -> int:
    """Return the most memory a process has held at once (``VmHWM``), in bytes; 0 where nobody says."""
    return _kilobytes(f"/proc/{pid}/status", "VmHWM")


def available_memory() -> int:
    """Return the memory that can be had without swapping, in bytes; 0 where nobody says."""
    return _kilobytes("/proc/meminfo", "MemAvailable")


class Disturbance:
    """What else happened on the machine since this was made: CPU time taken by others, and waits for CPUs."""

    def __init__(self) -> None:
        self._steal = _steal_seconds()
        self._waited = _pressure_seconds()

    def since(self) -> dict[str, float | None]:
        """Return seconds stolen by the hypervisor, and seconds in which some task here waited for a CPU."""
        return {
            "steal_seconds": _difference(_steal_seconds(), self._steal),
            "cpu_pressure_seconds": _difference(_pressure_seconds(), self._waited),
        }


def _difference(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else round(now - before, 3)


def _steal_seconds() -> float | None:
    for line in _lines("/proc/stat"):
        fields = line.split()
        if fields[0] == "cpu" and len(fields) > 8:
            return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    return None


def _pressure_seconds() -> float | None:
    for line in _lines("/proc/pressure/cpu"):
        if line.startswith("some"):
            return int(line.rpartition("=")[2]) / 1e6
    return None


def _load_average() -> list[float] | None:
    return [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit this code is from, with a + if files differ from it; None outside a repository."""
    directory = Path(tinyllm.__file__).parent
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(directory), "describe", "--always", "--dirty=+", "--exclude=*"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _kilobytes(path: str, key: str) -> int:
    for line in _lines(path):
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    if path == "/proc/self/status":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return 0


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a file of the Linux kernel; none elsewhere."""
    try:
        text = Path(path).read_text()
    except OSError:
        return
    yield from text.splitlines()
