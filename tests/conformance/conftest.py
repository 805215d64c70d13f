"""Engines that the cases of shared/design/conformance.md run on. One thread: the models are small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.conformance.support import SMALL
from tinyllm import Engine


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="package")
def anyio_backend() -> str:
    return "asyncio"  # tests/engine runs on both event loops


@pytest.fixture(scope="package")
def llama(tiny_llama: Path) -> Iterator[Engine]:
    """A random Llama: byte-level BPE, two EOS ids, a context of 256 tokens."""
    with Engine(model=str(tiny_llama), **SMALL) as engine:
        yield engine


@pytest.fixture(scope="package")
def qwen3(tiny_qwen3: Path) -> Iterator[Engine]:
    """A random Qwen3 with the real tokenizer."""
    with Engine(model=str(tiny_qwen3), **SMALL) as engine:
        yield engine


@pytest.fixture(scope="package", params=["llama", "qwen3"])
def tiny(request: pytest.FixtureRequest) -> Engine:
    """Each of them."""
    engine: Engine = request.getfixturevalue(request.param)
    return engine
