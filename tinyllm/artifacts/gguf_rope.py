"""Rotary embedding settings from GGUF metadata, among them llama3 scaling, which GGUF stores as factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from tinyllm.artifacts.json_file import Fields, shorten
from tinyllm.errors import UnsupportedModelError

__all__ = ["llama3_factors", "recover_llama3", "rope_scaling"]

_MAX_FACTOR: Final = 1e6
_TOLERANCE: Final = 1e-5
"""Relative, for stored factors: they were computed and stored in float32."""
_PUBLISHED_HIGH_FREQ_FACTOR: Final = 4.0

# Settings of llama.cpp's yarn that ``rope_scaling`` has no word for, and their neutral values.
_NEUTRAL: Final = {
    "attn_factor": 1.0,
    "yarn_attn_factor": 1.0,
    "yarn_ext_factor": 1.0,
    "yarn_log_multiplier": 0.0,
}


def rope_scaling(
    metadata: Fields, arch: str, head_dim: int, factors: Sequence[float] | None
) -> tuple[float, dict[str, Any] | None]:
    """Return ``rope_theta`` and ``rope_scaling`` as ``config.json`` has them.

    Raises `UnsupportedModelError` for a kind of scaling that is not supported.
    """
    theta = metadata.number(f"{arch}.rope.freq_base", 10_000.0, minimum=1, maximum=1e12)
    prefix = f"{arch}.rope.scaling"
    kind = metadata.string(f"{prefix}.type", "none")
    if factors is not None:
        if kind != "none":
            raise UnsupportedModelError(
                f"{metadata.file}: rope factors together with {shorten(kind)} scaling"
            )
        return theta, recover_llama3(factors, theta, head_dim, metadata.file)
    match kind:
        case "none":
            return theta, None
        case "linear":
            return theta, {"rope_type": "linear", "factor": _factor(metadata, prefix)}
        case "yarn":
            return theta, _yarn(metadata, prefix)
    raise UnsupportedModelError(
        f"{metadata.file}: rope scaling {shorten(kind)} is not supported, only linear, yarn and llama3"
    )


def _factor(metadata: Fields, prefix: str) -> float:
    return metadata.number(f"{prefix}.factor", minimum=1, maximum=_MAX_FACTOR)


def _yarn(metadata: Fields, prefix: str) -> dict[str, Any]:
    for key, neutral in _NEUTRAL.items():
        if metadata.values.get(f"{prefix}.{key}", neutral) != neutral:
            raise UnsupportedModelError(f"{metadata.file}: {prefix}.{key} is not supported")
    original = metadata.integer(f"{prefix}.original_context_length", maximum=1 << 31)
    return {
        "rope_type": "yarn",
        "factor": _factor(metadata, prefix),
        "original_max_position_embeddings": original,
        "beta_fast": metadata.number(f"{prefix}.yarn_beta_fast", 32.0, minimum=0, maximum=_MAX_FACTOR),
        "beta_slow": metadata.number(f"{prefix}.yarn_beta_slow", 1.0, minimum=0, maximum=_MAX_FACTOR),
    }


def llama3_factors(
    theta: float, head_dim: int, *, factor: float, low: float, high: float, original: int
) -> list[float]:
    """Return by how much llama3 scaling divides each of the ``head_dim / 2`` frequencies.

    A frequency that makes more than ``high`` turns within the original context is kept, one that makes fewer
    than ``low`` is divided by ``factor``, and the share that is kept rises linearly in between.
    """
    shares = [(turns * original - low) / (high - low) for turns in _turns_per_token(theta, head_dim)]
    return [1 / (share + (1 - share) / factor) for share in (min(max(share, 0.0), 1.0) for share in shares)]


def recover_llama3(factors: Sequence[float], theta: float, head_dim: int, file: str) -> dict[str, Any] | None:
    """Return the ``rope_scaling`` that gives ``factors``, or None if they change nothing.

    Factors between 1 and the largest lie on a line, which fixes the ramp up to a common multiple of its
    three numbers; that multiple changes no frequency, so ``low_freq_factor`` is 1, as in published models.
    Every factor is then computed back and compared. Raises `UnsupportedModelError` when one does not fit.
    """
    refusal = UnsupportedModelError(
        f"{file}: its {len(factors)} rope factors are not those of llama3 scaling; others are not supported"
    )
    if len(factors) != head_dim // 2 or not all(1 <= factor <= _MAX_FACTOR for factor in factors):
        raise refusal
    largest = max(factors)
    if largest == 1.0:
        return None
    ramp = [
        (turns, (1 / factor - 1 / largest) / (1 - 1 / largest))
        for turns, factor in zip(_turns_per_token(theta, head_dim), factors, strict=True)
        if 1.0 < factor < largest
    ]
    if not ramp:
        raise refusal
    high = _high_freq_factor(ramp)
    turns, share = ramp[0]
    original = (1 + share * (high - 1)) / turns
    if not (1 < high <= _MAX_FACTOR and 1 <= original < 1 << 31):
        raise refusal
    expected = llama3_factors(theta, head_dim, factor=largest, low=1.0, high=high, original=round(original))
    if not all(math.isclose(*pair, rel_tol=_TOLERANCE) for pair in zip(expected, factors, strict=True)):
        raise refusal
    return {
        "rope_type": "llama3",
        "factor": largest,
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": round(original),
    }


def _high_freq_factor(ramp: Sequence[tuple[float, float]]) -> float:
    """Return ``high_freq_factor`` from the line through points ``(turns per token, share kept)``."""
    (x0, y0), (x1, y1) = ramp[0], ramp[-1]
    if len(ramp) == 1:  # a tiny head: any line through the point gives the same factors
        return _PUBLISHED_HIGH_FREQ_FACTOR
    intercept = y0 - x0 * (y1 - y0) / (x1 - x0)  # -1 / (high - 1)
    return round(1 - 1 / intercept, 3) if intercept < 0 else math.inf


def _turns_per_token(theta: float, head_dim: int) -> list[float]:
    return [theta ** (-2 * pair / head_dim) / (2 * math.pi) for pair in range(head_dim // 2)]
