"""`WeightReader`: a checkpoint's tensors, one at a time, straight into the memory they stay in."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tinyllm.artifacts.model import WeightSource

__all__ = ["WeightReader"]


class WeightReader:
    """Reads tensors in one dtype onto one device. ``on_read`` is told the stored bytes of each."""

    def __init__(
        self,
        source: WeightSource,
        *,
        dtype: torch.dtype,
        device: torch.device,
        on_read: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        self.source = source
        self.dtype, self.device = dtype, device
        self._on_read = on_read

    def read(self, *names: str) -> torch.Tensor:
        """Return a new tensor of the named ones, stacked along their first dimension."""
        infos = [self.source.tensors[name] for name in names]
        rows = [info.shape[0] for info in infos]
        out = torch.empty(sum(rows), *infos[0].shape[1:], dtype=self.dtype, device=self.device)
        for info, part in zip(infos, torch.split(out, rows), strict=True):
            self.source.read_into(info.name, part)
            self._on_read(info.nbytes)
        return out
