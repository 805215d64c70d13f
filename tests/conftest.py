"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported. Threads that spin long are a hundred times slower beside other processes.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("OMP_WAIT_POLICY", "active")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import settings

from tests import checkpoints

settings.register_profile("default", deadline=None)  # a busy machine is no fault
settings.load_profile("default")


def _checkpoint(name: str) -> Path:
    path = checkpoints.root() / name
    if not path.exists():
        # In a process of its own: what transformers warns of while it writes a model is no error of ours.
        done = subprocess.run([sys.executable, "-m", "tests.checkpoints", name], check=False)
        if done.returncode and not os.environ.get("CI"):  # no npm, no network: only CI must have them
            pytest.skip(f"{name} cannot be made here")
        done.check_returncode()
    return path


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Real SmolLM2-135M-Instruct, as transformers wrote it."""
    return _checkpoint(checkpoints.SMOLLM2)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The Q4_1 GGUF file that SmolLM2's weights come from."""
    return _checkpoint(checkpoints.SMOLLM2_GGUF)


@pytest.fixture(scope="session")
def tiny_llama() -> Path:
    """A random Llama with llama3 rope, shards, an untied head and two EOS ids."""
    return _checkpoint("tiny-llama")


@pytest.fixture(scope="session")
def tiny_qwen2() -> Path:
    """A random Qwen2: QKV bias, tied head."""
    return _checkpoint("tiny-qwen2")


@pytest.fixture(scope="session")
def tiny_qwen3() -> Path:
    """A random Qwen3: q/k norm, explicit head_dim, the real Qwen3 tokenizer."""
    return _checkpoint("tiny-qwen3")


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model in the user's cache, so that code which names no model runs."""
    from tinyllm.artifacts.cache import cache_directory
    from tinyllm.artifacts.resolve import open_model

    open_model(None, progress=False)
    return cache_directory()


@pytest.fixture
def signals_are_heard() -> Iterator[None]:
    """A background job inherits that SIGINT is ignored, one under nohup SIGHUP, and so would its servers."""
    numbers = (signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
