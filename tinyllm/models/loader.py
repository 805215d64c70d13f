"""`load_model`: from a model's checked files to a model that runs, without a second whole copy in memory."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tqdm import tqdm

from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.attention.metadata import AttentionBackend
from tinyllm.errors import UnsupportedModelError
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.registry import MODELS
from tinyllm.models.weights import WeightReader

__all__ = ["load_model"]


def load_model(
    artifacts: ModelArtifacts,
    *,
    dtype: torch.dtype,
    device: torch.device,
    backend: AttentionBackend,
    progress: bool = False,
    check: Callable[[], None] = lambda: None,
) -> CausalLM:
    """Load the weights in ``dtype`` onto ``device``; ``progress`` shows a bar on standard error.

    ``check`` is called after each tensor; what it raises ends the loading.
    Each tensor is read into the memory it stays in; a packed layer is packed, and its unpacked form freed,
    before the next is read. Raises `UnsupportedModelError` for an unknown architecture, and `CheckpointError`
    when a file is not what it was when it was checked.
    """
    architecture = artifacts.config.architecture
    if architecture not in MODELS:
        known = ", ".join(MODELS)
        raise UnsupportedModelError(f"architecture {architecture!r} is not supported; tinyllm runs {known}")
    model = MODELS[architecture](artifacts.config, backend, dtype=dtype, device=device)
    total = sum(info.nbytes for info in artifacts.weights.tensors.values())
    with tqdm(
        total=total, desc="Loading weights", unit="B", unit_scale=True, disable=None if progress else True
    ) as bar:

        def on_read(nbytes: int) -> None:
            bar.update(nbytes)
            check()

        model.load(WeightReader(artifacts.weights, dtype=dtype, device=device, on_read=on_read))
    return model.eval()
