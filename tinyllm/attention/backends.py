"""Attention backends by name. A new one is a file beside this one and a line here; tests compare them all."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tinyllm.attention.metadata import AttentionBackend
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.errors import ConfigError

__all__ = ["BACKENDS", "get_backend"]

BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "reference": ReferenceBackend,
}


def get_backend(name: str, device: torch.device) -> AttentionBackend:
    """Return a new backend for ``device``; ``auto`` is the fastest that works there.

    Raises `ConfigError` for an unknown name.
    """
    if name == "auto":
        name = "reference"
    if name not in BACKENDS:
        raise ConfigError(
            f"attention_backend: {name!r} is unknown; choose from {', '.join(['auto', *BACKENDS])}"
        )
    return BACKENDS[name]()
