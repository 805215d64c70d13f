from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.models.support import CPU
from tests.models.test_linear import Tensors
from tinyllm.artifacts.model import RopeConfig
from tinyllm.errors import UnsupportedModelError
from tinyllm.models.layers import Embedding, RMSNorm, silu_
from tinyllm.models.rope import RotaryEmbedding, apply_rotary, inverse_frequencies
from tinyllm.models.weights import WeightReader


def reader(dtype: torch.dtype = torch.float32, **tensors: torch.Tensor) -> WeightReader:
    named = Tensors({f"{name}.weight": tensor for name, tensor in tensors.items()})
    return WeightReader(named, dtype=dtype, device=CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [20, 96, 576])
def test_rms_norm(size: int, dtype: torch.dtype) -> None:
    norm = RMSNorm(eps=1e-5)
    norm.load("norm", reader(dtype, norm=torch.randn(size)))
    x = torch.randn(300, size).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = exact.to(dtype) * norm.weight
    torch.testing.assert_close(norm(x), expected)
    for rows in (1, 2, 7, 299):
        assert torch.equal(norm(x[:rows]), norm(x)[:rows])


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("columns", [90, 192, 1536])
def test_silu_does_not_depend_on_other_rows(columns: int, threads: int) -> None:
    torch.set_num_threads(threads)
    x = torch.randn(400, 2 * columns)
    whole = silu_(x.clone()[:, :columns])
    torch.testing.assert_close(whole, torch.nn.functional.silu(x[:, :columns]))
    for rows in (1, 2, 19, 200, 399):
        assert torch.equal(silu_(x.clone()[400 - rows :, :columns]), whole[400 - rows :])


def test_embedding_converts_to_the_asked_dtype() -> None:
    table = torch.randn(5, 3)
    embedding = Embedding()
    embedding.load("embed", reader(torch.bfloat16, embed=table))
    assert torch.equal(embedding(torch.tensor([4, 0, 4])), table.bfloat16()[[4, 0, 4]])


def test_rotary_turns_pairs_by_their_frequency() -> None:
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), 4, dtype=torch.float32, device=CPU)
    positions = torch.tensor([0, 3, 11])
    x = torch.randn(3, 2, 4)
    turned = apply_rotary(x, *rotary(positions, 12))
    pairs = torch.complex(x[..., :2], x[..., 2:])
    angles = positions[:, None, None] * torch.tensor([1.0, 0.1])
    expected = pairs * torch.polar(torch.ones(()), angles)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), dim=-1))


def test_rotary_does_not_depend_on_when_a_position_was_first_needed() -> None:
    positions = torch.tensor([5, 4095, 4096, 9000, 20_000])
    at_once, step_by_step = (
        RotaryEmbedding(RopeConfig(), 20, dtype=torch.float32, device=CPU) for _ in range(2)
    )
    for length in (10, 5000, 8192, 8193, 16_500):
        step_by_step(positions[:1], length)
    for ours, theirs in zip(at_once(positions, 20_001), step_by_step(positions, 20_001), strict=True):
        assert torch.equal(ours, theirs)
    assert at_once.cos.shape == (32_768, 10)


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        (
            RopeConfig("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
            "original_max_position",
        ),
        (RopeConfig("llama3", original_max_position_embeddings=64, low_freq_factor=1.0), "high_freq_factor"),
        (RopeConfig("yarn", factor=8.0), "original_max_position_embeddings"),
    ],
)
def test_rope_without_what_its_kind_needs_is_refused(config: RopeConfig, missing: str) -> None:
    with pytest.raises(UnsupportedModelError, match=missing):
        inverse_frequencies(config, 16)


def test_unknown_rope_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="longrope"):
        inverse_frequencies(replace(RopeConfig(), kind="longrope"), 16)  # type: ignore[arg-type]
