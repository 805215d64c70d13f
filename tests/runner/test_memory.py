"""How much memory is free, as the files that say so are read."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.runner.fakes import CPU
from tinyllm.runner import memory
from tinyllm.runner.memory import free_memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory that stands for the machine: ``meminfo`` and cgroup files."""
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


def write_cgroup(machine: Path, limit: str) -> None:
    (machine / "memory.max").write_text(limit + "\n")
    (machine / "memory.current").write_text("3000000\n")
    (machine / "memory.stat").write_text("anon 2000000\ninactive_file 500000\n")


def test_what_linux_says_is_available(machine: Path) -> None:
    (machine / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable:    5000 kB\n")
    assert free_memory(CPU) == 5000 * 1024


@pytest.mark.parametrize(("limit", "free"), [("4000000", 1_500_000), ("max", 5_120_000), ("1000", 0)])
def test_a_container_s_limit_counts(machine: Path, limit: str, free: int) -> None:
    (machine / "meminfo").write_text("MemAvailable: 5000 kB\n")
    write_cgroup(machine, limit)
    assert free_memory(CPU) == free


@pytest.mark.parametrize("content", [None, "MemTotal: 9000 kB\n"])
def test_half_of_the_machine_where_nothing_is_said(
    machine: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    if content:
        (machine / "meminfo").write_text(content)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert free_memory(CPU) == 1000 * 4096 // 2


def test_unknown_where_the_system_has_no_such_word(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf")
    assert free_memory(CPU) is None


def test_this_machine_has_some() -> None:
    free = free_memory(CPU)
    assert free is not None
    assert free > 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc only")
def test_freed_memory_is_used_again() -> None:
    code = textwrap.dedent(
        """
        import resource
        import torch
        from tinyllm.runner.memory import keep_freed_memory

        def faults_of_ten() -> int:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(10):
                [torch.zeros(size << 20, dtype=torch.uint8) for size in (20, 5, 25)]
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        keep_freed_memory()
        faults_of_ten()
        print(faults_of_ten())
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000, "50 MB are 12,800 pages, ten times over"
