"""Attention backends by name. A new one is a file beside this one and a line here; tests compare them all."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import torch

from tinyllm.attention.metadata import AttentionBackend, KVCacheSpec
from tinyllm.attention.paged import PagedAttention
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.errors import ConfigError
from tinyllm.native.library import NativeUnavailableError

__all__ = ["BACKENDS", "get_backend"]

logger = logging.getLogger("tinyllm.attention")

BACKENDS: Final[dict[str, Callable[[], AttentionBackend]]] = {
    "paged": PagedAttention,
    "reference": ReferenceBackend,
}
"""Fastest first; the last one runs everywhere."""

TOLERANCE: Final = 2e-2
"""A backend that differs more than this from the reference, on numbers around 1, is broken here."""


def get_backend(name: str, spec: KVCacheSpec) -> AttentionBackend:
    """Return a new backend for a KV cache like ``spec``; ``auto`` is the fastest that works there.

    Raises `ConfigError` for an unknown name, and for one that cannot serve ``spec`` here.
    """
    if name == "auto":
        return _fastest(spec)
    if name not in BACKENDS:
        names = ", ".join(["auto", *BACKENDS])
        raise ConfigError(f"attention_backend: {name!r} is unknown; choose from {names}")
    backend, reason = _try(name, spec)
    if backend is None:
        raise ConfigError(f"attention_backend: {name!r} cannot be used here: {reason}; use 'auto'")
    return backend


def _fastest(spec: KVCacheSpec) -> AttentionBackend:
    for name in BACKENDS:
        backend, reason = _try(name, spec)
        if backend is not None:
            return backend
        # On a CPU every backend should work: the next one costs users much of their speed.
        level = logging.WARNING if spec.device.type == "cpu" else logging.INFO
        logger.log(level, "attention backend %r is not used: %s", name, reason)
    raise ConfigError("no attention backend works here")


def _try(name: str, spec: KVCacheSpec) -> tuple[AttentionBackend | None, str | None]:
    """Return the backend, or why there is none."""
    try:
        backend = BACKENDS[name]()
    except NativeUnavailableError as error:
        return None, str(error)
    if reason := backend.cannot_run(spec):
        return None, reason
    if name != "reference" and not _agrees(backend, spec):
        return None, "it does not agree with the reference on this machine"
    return backend, None


@torch.inference_mode()
def _agrees(backend: AttentionBackend, spec: KVCacheSpec) -> bool:
    """Whether two short sequences give what the reference gives. Takes about a millisecond."""
    lens = (spec.block_size + 3, 2)
    tables = ((1, 0), (2,))
    generator = torch.Generator().manual_seed(0)
    shape = (sum(lens), spec.num_kv_heads, spec.head_dim)
    q, k, v = (torch.randn(shape, generator=generator).to(spec.device) for _ in range(3))
    results = []
    for each in (backend, ReferenceBackend()):
        metadata = each.build_metadata(spec, (0, lens[0], sum(lens)), lens, tables)
        results.append(each.forward(q, k, v, each.allocate(spec, 3)[0], metadata, spec.head_dim**-0.5))
    return bool((results[0] - results[1]).abs().max() < TOLERANCE)
