from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch

from tinyllm.attention.reference import ReferenceBackend
from tinyllm.errors import ConfigError, DeviceError
from tinyllm.models import linear
from tinyllm.runner import device as device_module
from tinyllm.runner.device import default_num_threads, preflight, resolve_device, resolve_dtype

CPU = torch.device("cpu")


def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device("cpu") == CPU
    with pytest.raises(DeviceError, match="2 CUDA devices"):
        resolve_device("cuda:2")


def test_cuda_that_is_not_there_is_an_error_not_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="device='cpu'"):
        resolve_device("cuda")


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "mps", "cpu:0", "CUDA"])
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cuda:N"):
        resolve_device(name)


def test_dtype() -> None:
    assert resolve_dtype("auto", "bfloat16") == torch.bfloat16
    assert resolve_dtype("float16", "bfloat16") == torch.float16
    with pytest.raises(ConfigError, match="int8"):
        resolve_dtype("int8", "bfloat16")
    with pytest.raises(ConfigError, match="float64"):
        resolve_dtype("auto", "float64")


@pytest.mark.parametrize("kv_cache_dtype", [None, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_preflight_passes_here(dtype: torch.dtype, kv_cache_dtype: torch.dtype | None) -> None:
    preflight(CPU, dtype, ReferenceBackend(), kv_cache_dtype)


def test_preflight_says_what_does_not_run() -> None:
    with pytest.raises(DeviceError, match=r"float8_e4m3fn cannot run on cpu.*dtype='float32'"):
        preflight(CPU, torch.float8_e4m3fn)


def test_preflight_sees_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ReferenceBackend):
        def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
            return torch.full((3, 2, 32), torch.nan)

    with pytest.raises(DeviceError, match="wrong numbers"):
        preflight(CPU, torch.float32, Broken())


def test_preflight_warns_where_bfloat16_is_emulated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (linear, device_module):
        monkeypatch.setattr(module, "can_pack", lambda dtype, device: False)
    with caplog.at_level(logging.WARNING):
        preflight(CPU, torch.bfloat16)
    assert "emulated" in caplog.text


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A pretended machine: files of the kernel by name, and four hardware threads."""
    files: dict[str, str] = {}

    def read_text(path: Path) -> str:
        try:
            return files[str(path)]
        except KeyError:
            raise FileNotFoundError(path) from None

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(Path, "read_text", read_text)
    return files


def siblings(cpu: int) -> str:
    return f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"


def test_threads_are_physical_cores(machine: dict[str, str]) -> None:
    assert default_num_threads() == 4
    machine.update({siblings(cpu): f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)})
    assert default_num_threads() == 2


@pytest.mark.parametrize(("quota", "threads"), [("max 100000", 4), ("150000 100000", 2), ("5000 100000", 1)])
def test_threads_are_within_the_quota(machine: dict[str, str], quota: str, threads: int) -> None:
    machine["/sys/fs/cgroup/cpu.max"] = f"{quota}\n"
    assert default_num_threads() == threads
