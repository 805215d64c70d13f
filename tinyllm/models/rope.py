"""Rotary position embedding: which angle each pair of dimensions turns by at each position.

The pairs are (i, i + head_dim / 2), as in Hugging Face checkpoints. RoPE: Su et al., arXiv 2104.09864;
yarn: Peng et al., arXiv 2309.00071; linear: Chen et al., arXiv 2306.15595; llama3: the Llama 3.1 models.
"""

from __future__ import annotations

import math

import torch

from tinyllm.artifacts.model import RopeConfig
from tinyllm.errors import UnsupportedModelError

__all__ = ["RotaryEmbedding", "attention_factor", "inverse_frequencies"]

FIRST_TABLE = 4096


class RotaryEmbedding:
    """Cosines and sines by position, computed once and kept in the model's dtype.

    The table doubles when a step needs more, always by slabs of the same shapes, so that a position's values
    never depend on when it was first needed.
    """

    def __init__(
        self, config: RopeConfig, head_dim: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.dtype = dtype
        self.inverse_frequencies = inverse_frequencies(config, head_dim).to(device)
        self.attention_factor = attention_factor(config)
        self.cos, self.sin = self._slab(0, FIRST_TABLE)

    def __call__(self, positions: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines ``[num_tokens, head_dim / 2]`` of ``positions``, all below ``length``."""
        self.reserve(length)
        return self.cos[positions], self.sin[positions]

    def reserve(self, length: int) -> None:
        """Have ``cos`` and ``sin`` hold every position below ``length``."""
        while (have := self.cos.shape[0]) < length:
            cos, sin = self._slab(have, 2 * have)
            self.cos, self.sin = torch.cat((self.cos, cos)), torch.cat((self.sin, sin))

    def _slab(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies = self.inverse_frequencies
        positions = torch.arange(start, end, dtype=torch.float32, device=frequencies.device)
        angles = positions[:, None] * frequencies
        cos, sin = angles.cos() * self.attention_factor, angles.sin() * self.attention_factor
        return cos.to(self.dtype), sin.to(self.dtype)


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return the angle per position, in radians, of each pair: float32 ``[head_dim // 2]``."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    if config.kind == "yarn":
        return _yarn(config, head_dim, config.theta**exponents)
    default = 1.0 / config.theta**exponents
    if config.kind == "default":
        return default
    if config.kind == "linear":
        return default / config.factor
    if config.kind == "llama3":
        return _llama3(config, default)
    raise UnsupportedModelError(f"rope of kind {config.kind!r} is not supported")


def attention_factor(config: RopeConfig) -> float:
    """Return what cosines and sines are multiplied with; yarn sharpens attention by it, others do not."""
    if config.kind != "yarn":
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _mscale(config.factor, config.mscale) / _mscale(config.factor, config.mscale_all_dim)
    return _mscale(config.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _llama3(config: RopeConfig, default: torch.Tensor) -> torch.Tensor:
    """Slow down only the pairs that turn less than a few times in the original context."""
    context = _needed(config, "original_max_position_embeddings")
    low, high = _needed(config, "low_freq_factor"), _needed(config, "high_freq_factor")
    wavelength = 2 * math.pi / default
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * default / config.factor + smooth * default
    slow = torch.where(wavelength > context / low, default / config.factor, default)
    is_between = (wavelength >= context / high) & (wavelength <= context / low)
    return torch.where(is_between, between, slow)


def _yarn(config: RopeConfig, head_dim: int, wavelengths: torch.Tensor) -> torch.Tensor:
    """Blend unchanged fast pairs into slow pairs stretched by ``factor``, along a ramp over the pairs."""
    context = _needed(config, "original_max_position_embeddings")

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a ramp needs a width
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    unchanged = 1 - ramp
    return 1.0 / (config.factor * wavelengths) * (1 - unchanged) + 1.0 / wavelengths * unchanged


def _needed(config: RopeConfig, field: str) -> float:
    value: float | None = getattr(config, field)
    if value is None:
        raise UnsupportedModelError(f"rope of kind {config.kind!r} needs {field} in config.json")
    return value
