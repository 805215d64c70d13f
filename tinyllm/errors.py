"""Every error that tinyllm raises, in one tree.

::

    TinyLLMError
    ├── ConfigError                  an option of the engine or of a command is wrong
    ├── ArtifactError                a model's files
    │   ├── ModelNotFoundError       there is no such directory, file, repository or revision
    │   ├── ModelDownloadError       it exists, but could not be fetched (network, offline mode, digest)
    │   ├── CheckpointError          config, index, safetensors or GGUF file is damaged or does not fit
    │   ├── TokenizerError           tokenizer files are missing or damaged
    │   └── UnsupportedModelError    well formed, but not something tinyllm runs
    ├── DeviceError                  this device or dtype cannot run here
    ├── InvalidRequestError          one request is wrong; nothing was accepted
    │   ├── ContextLengthError       prompt (plus max_tokens) does not fit the context
    │   └── ChatTemplateError        the chat template is missing, refused the messages or hit a limit
    ├── EngineError                  the engine cannot take or go on with work
    │   ├── EngineOverloadedError    admission is full; try again later
    │   ├── EngineClosedError        closed, closing or not started
    │   └── EngineDeadError          a step failed; the engine will not come back
    └── RequestError                 an accepted request ended without a normal finish
        ├── RequestAbortedError      it was aborted
        ├── RequestTimeoutError      ``timeout`` or ``queue_timeout`` passed
        ├── SlowConsumerError        its reader stopped reading for ``stall_timeout``
        └── RequestFailedError       a fault of this request alone (a hook raised, ...)
            └── NoTokenLeftError     its own options forbid every token

Messages say what is wrong and what to do. They name files by their name inside the model, never by a
path of this machine. ``code`` is a stable machine-readable word; HTTP and ``--json`` output carry it.
"""

from __future__ import annotations

__all__ = [
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
    "NoTokenLeftError",
    "RequestAbortedError",
    "RequestError",
    "RequestFailedError",
    "RequestTimeoutError",
    "SlowConsumerError",
    "TinyLLMError",
    "TokenizerError",
    "UnsupportedModelError",
]


class TinyLLMError(Exception):
    """Base of every error tinyllm raises on purpose."""

    code = "internal_error"


class ConfigError(TinyLLMError, ValueError):
    """An option of the engine or of a command has a wrong name, type or value."""

    code = "invalid_config"


class ArtifactError(TinyLLMError):
    """A model's files cannot be used."""

    code = "model_unusable"


class ModelNotFoundError(ArtifactError):
    """There is no such directory, file, repository or revision."""

    code = "model_not_found"


class ModelDownloadError(ArtifactError):
    """The model exists but could not be fetched: network, offline mode, permission or digest."""

    code = "model_download_failed"


class CheckpointError(ArtifactError):
    """A file of the model is damaged, or does not fit the others.

    ``file`` and ``tensor`` name the place, where there is one.
    """

    code = "checkpoint_invalid"

    def __init__(self, message: str, *, file: str | None = None, tensor: str | None = None) -> None:
        self.file, self.tensor = file, tensor
        place = ", ".join(part for part in (file, f"tensor {tensor!r}" if tensor else None) if part)
        super().__init__(f"{place}: {message}" if place else message)


class TokenizerError(ArtifactError):
    """The tokenizer's files are missing, damaged or of an unknown kind."""

    code = "tokenizer_invalid"


class UnsupportedModelError(ArtifactError):
    """The model is well formed, but its architecture or one of its features is not supported."""

    code = "model_unsupported"


class DeviceError(TinyLLMError):
    """The device, or this dtype on it, cannot run the model here."""

    code = "device_unavailable"


class InvalidRequestError(TinyLLMError, ValueError):
    """One request is wrong. Nothing was accepted; ``param`` names the field."""

    code = "invalid_value"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        self.param = param
        super().__init__(message)


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt plus ``max_tokens``, does not fit the model's context or the KV cache."""

    code = "context_length_exceeded"


class ChatTemplateError(InvalidRequestError):
    """The chat template is missing, refused the messages, or went over one of its limits."""

    code = "chat_template_error"


class EngineError(TinyLLMError):
    """The engine cannot take work, or cannot go on with it."""

    code = "engine_error"


class EngineOverloadedError(EngineError):
    """Admission is full. Try again after about ``retry_after`` seconds."""

    code = "engine_overloaded"

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class EngineClosedError(EngineError):
    """The engine is not started, closing, or closed."""

    code = "engine_closed"


class EngineDeadError(EngineError):
    """A step of the engine failed. Every request ends with this; ``__cause__`` has the fault."""

    code = "engine_dead"


class RequestError(TinyLLMError):
    """An accepted request ended without a normal finish."""

    code = "request_failed"


class RequestAbortedError(RequestError):
    """The request was aborted before it finished."""

    code = "request_aborted"


class RequestTimeoutError(RequestError):
    """The request's ``timeout`` or ``queue_timeout`` passed before it finished."""

    code = "request_timeout"


class SlowConsumerError(RequestError):
    """The stream's reader did not read for ``stall_timeout`` seconds, so the request was ended."""

    code = "slow_consumer"


class RequestFailedError(RequestError):
    """A fault that belongs to this request alone, such as a logits processor that raised."""

    code = "request_failed"


class NoTokenLeftError(RequestFailedError):
    """The request's own options, such as `allowed_token_ids` with `bad_words`, leave no token to sample."""

    code = "no_token_left"
