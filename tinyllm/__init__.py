"""An asyncio-native engine that runs and serves causal language models on PyTorch."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tinyllm.config import EngineConfig
    from tinyllm.engine.async_engine import AsyncEngine
    from tinyllm.engine.lifecycle import EngineStatus
    from tinyllm.engine.loaded import EngineInfo
    from tinyllm.engine.prompt import RenderedPrompt
    from tinyllm.engine.stream import TokenStream
    from tinyllm.engine.sync_engine import Engine
    from tinyllm.errors import *
    from tinyllm.outputs import *
    from tinyllm.params import SamplingParams

__all__ = [
    "ArtifactError",
    "AsyncEngine",
    "ChatTemplateError",
    "CheckpointError",
    "CompletionOutput",
    "ConfigError",
    "ContextLengthError",
    "DeviceError",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "EngineInfo",
    "EngineOverloadedError",
    "EngineStatus",
    "FinishReason",
    "GenerationResult",
    "InvalidRequestError",
    "ModelDownloadError",
    "ModelNotFoundError",
    "NoTokenLeftError",
    "RenderedPrompt",
    "RequestAbortedError",
    "RequestError",
    "RequestFailedError",
    "RequestMetrics",
    "RequestOutput",
    "RequestTimeoutError",
    "SamplingParams",
    "SlowConsumerError",
    "TinyLLMError",
    "TokenLogprob",
    "TokenStream",
    "TokenizerError",
    "TopLogprob",
    "UnsupportedModelError",
    "Usage",
]

_HOMES: Final = (
    "tinyllm.errors",
    "tinyllm.params",
    "tinyllm.outputs",
    "tinyllm.config",
    "tinyllm.engine.async_engine",
    "tinyllm.engine.lifecycle",
    "tinyllm.engine.loaded",
    "tinyllm.engine.prompt",
    "tinyllm.engine.stream",
    "tinyllm.engine.sync_engine",
)
"""Where public names live, light modules first. They are imported when a name is first used (PEP 562)."""

logging.getLogger("tinyllm").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tinyllm")
    if name in __all__:
        for home in map(import_module, _HOMES):
            if name in home.__all__:
                value = globals()[name] = getattr(home, name)  # next time there is nothing to look up
                return value
    raise AttributeError(f"module 'tinyllm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
