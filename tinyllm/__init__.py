"""An asyncio-native engine that runs and serves causal language models on PyTorch."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from tinyllm.config import EngineConfig as EngineConfig
    from tinyllm.engine.async_engine import AsyncEngine as AsyncEngine
    from tinyllm.engine.async_engine import EngineStatus as EngineStatus
    from tinyllm.engine.loaded import EngineInfo as EngineInfo
    from tinyllm.engine.prompt import RenderedPrompt as RenderedPrompt
    from tinyllm.engine.stream import TokenStream as TokenStream
    from tinyllm.engine.sync_engine import Engine as Engine
    from tinyllm.errors import ArtifactError as ArtifactError
    from tinyllm.errors import ChatTemplateError as ChatTemplateError
    from tinyllm.errors import CheckpointError as CheckpointError
    from tinyllm.errors import ConfigError as ConfigError
    from tinyllm.errors import ContextLengthError as ContextLengthError
    from tinyllm.errors import DeviceError as DeviceError
    from tinyllm.errors import EngineClosedError as EngineClosedError
    from tinyllm.errors import EngineDeadError as EngineDeadError
    from tinyllm.errors import EngineError as EngineError
    from tinyllm.errors import EngineOverloadedError as EngineOverloadedError
    from tinyllm.errors import InvalidRequestError as InvalidRequestError
    from tinyllm.errors import ModelDownloadError as ModelDownloadError
    from tinyllm.errors import ModelNotFoundError as ModelNotFoundError
    from tinyllm.errors import RequestAbortedError as RequestAbortedError
    from tinyllm.errors import RequestError as RequestError
    from tinyllm.errors import RequestFailedError as RequestFailedError
    from tinyllm.errors import RequestTimeoutError as RequestTimeoutError
    from tinyllm.errors import SlowConsumerError as SlowConsumerError
    from tinyllm.errors import TinyLLMError as TinyLLMError
    from tinyllm.errors import TokenizerError as TokenizerError
    from tinyllm.errors import UnsupportedModelError as UnsupportedModelError
    from tinyllm.outputs import CompletionOutput as CompletionOutput
    from tinyllm.outputs import FinishReason as FinishReason
    from tinyllm.outputs import GenerationResult as GenerationResult
    from tinyllm.outputs import RequestMetrics as RequestMetrics
    from tinyllm.outputs import RequestOutput as RequestOutput
    from tinyllm.outputs import TokenLogprob as TokenLogprob
    from tinyllm.outputs import TopLogprob as TopLogprob
    from tinyllm.outputs import Usage as Usage
    from tinyllm.params import SamplingParams as SamplingParams

_HOMES: Final = {
    "tinyllm.config": ("EngineConfig",),
    "tinyllm.engine.async_engine": ("AsyncEngine", "EngineStatus"),
    "tinyllm.engine.loaded": ("EngineInfo",),
    "tinyllm.engine.prompt": ("RenderedPrompt",),
    "tinyllm.engine.stream": ("TokenStream",),
    "tinyllm.engine.sync_engine": ("Engine",),
    "tinyllm.errors": (
        "ArtifactError",
        "ChatTemplateError",
        "CheckpointError",
        "ConfigError",
        "ContextLengthError",
        "DeviceError",
        "EngineClosedError",
        "EngineDeadError",
        "EngineError",
        "EngineOverloadedError",
        "InvalidRequestError",
        "ModelDownloadError",
        "ModelNotFoundError",
        "RequestAbortedError",
        "RequestError",
        "RequestFailedError",
        "RequestTimeoutError",
        "SlowConsumerError",
        "TinyLLMError",
        "TokenizerError",
        "UnsupportedModelError",
    ),
    "tinyllm.outputs": (
        "CompletionOutput",
        "FinishReason",
        "GenerationResult",
        "RequestMetrics",
        "RequestOutput",
        "TokenLogprob",
        "TopLogprob",
        "Usage",
    ),
    "tinyllm.params": ("SamplingParams",),
}
"""Public names by the module they live in, which is imported when one is first used (PEP 562)."""

_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)

logging.getLogger("tinyllm").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tinyllm' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value  # next time there is nothing to look up
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
