"""Everything on an event loop is tested on both of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.fakes import FakeRunner, Script, build_fake_core, letters
from tinyllm import AsyncEngine

MakeEngine = Callable[..., AsyncEngine]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


@pytest.fixture
def make_engine() -> MakeEngine:
    """Make an engine over the fakes; options of `build_fake_core` and of `EngineConfig` alike."""

    def make(
        script: Script = letters, *, runner: FakeRunner | None = None, num_blocks: int = 256, **options: Any
    ) -> AsyncEngine:
        fakes = {name: options.pop(name) for name in ("tokenizer", "templates") if name in options}
        build = partial(build_fake_core, script=script, runner=runner, num_blocks=num_blocks, **fakes)
        return AsyncEngine(_build=build, **{"check_integrity": True, "status_log_interval": 0, **options})

    return make
