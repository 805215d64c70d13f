from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from tests.models.support import CONFIG, CPU, qwen3_config, random_model
from tests.models.test_invariance import assert_cut_anyhow_is_the_same
from tests.models.test_linear import Tensors
from tinyllm.artifacts.model import RopeConfig
from tinyllm.errors import UnsupportedModelError
from tinyllm.models import causal_lm
from tinyllm.models.layers import Embedding
from tinyllm.models.linear import can_pack
from tinyllm.models.operators import NativeOperators, Operators, TorchOperators
from tinyllm.models.rope import RotaryEmbedding, inverse_frequencies
from tinyllm.models.weights import WeightReader
from tinyllm.native.library import NativeUnavailableError


def reader(dtype: torch.dtype = torch.float32, **tensors: torch.Tensor) -> WeightReader:
    named = Tensors({f"{name}.weight": tensor for name, tensor in tensors.items()})
    return WeightReader(named, dtype=dtype, device=CPU)


@pytest.fixture(params=["torch", "native"])
def make_operators(request: pytest.FixtureRequest) -> Callable[[torch.dtype], Operators]:
    if request.param == "torch":
        return lambda dtype: TorchOperators()
    try:
        NativeOperators(torch.float32)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    return NativeOperators


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [20, 96, 576])
def test_rms_norm(make_operators: Callable[[torch.dtype], Operators], size: int, dtype: torch.dtype) -> None:
    operators = make_operators(dtype)
    x, residual, weight = (torch.randn(*shape, size).to(dtype) for shape in ((300,), (300,), ()))

    def norm(rows: int) -> torch.Tensor:
        return operators.add_rms_norm(x[:rows], residual[:rows].clone(), weight, 1e-5)

    added = (x + residual).double()
    exact = added / (added.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(300), exact.to(dtype) * weight)
    for rows in (1, 2, 7, 299):
        assert torch.equal(norm(rows), norm(300)[:rows])
    torch.testing.assert_close(
        operators.add_rms_norm(None, residual.clone(), weight, 1e-5),
        operators.add_rms_norm(torch.zeros_like(x), residual.clone(), weight, 1e-5),
    )


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("columns", [90, 192, 1536])
def test_silu_does_not_depend_on_other_rows(
    make_operators: Callable[[torch.dtype], Operators], columns: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    silu_and_mul = make_operators(torch.float32).silu_and_mul
    gate_up = torch.randn(400, 2 * columns)
    whole = silu_and_mul(gate_up)
    torch.testing.assert_close(whole, F.silu(gate_up[:, :columns]) * gate_up[:, columns:])
    for rows in (1, 2, 19, 200, 399):
        assert torch.equal(silu_and_mul(gate_up[400 - rows :]), whole[400 - rows :])


@pytest.mark.skipif(not can_pack(torch.float32, CPU), reason="not packed on this CPU")
def test_rows_are_independent_without_the_native_operators_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_lm, "get_operators", lambda dtype, device: TorchOperators())
    for config in (CONFIG, qwen3_config()):
        model = random_model(config)
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert_cut_anyhow_is_the_same(model, [530, 64, 3, 1], seed=threads)


def test_embedding_converts_to_the_asked_dtype() -> None:
    table = torch.randn(5, 3)
    embedding = Embedding()
    embedding.load("embed", reader(torch.bfloat16, embed=table))
    assert torch.equal(embedding(torch.tensor([4, 0, 4])), table.bfloat16()[[4, 0, 4]])


@pytest.mark.parametrize("normed", [False, True])
def test_rotary_turns_pairs_by_their_frequency(
    make_operators: Callable[[torch.dtype], Operators], normed: bool
) -> None:
    rotary = RotaryEmbedding(RopeConfig(theta=100.0), 4, dtype=torch.float32, device=CPU)
    positions = torch.tensor([0, 3, 11])
    heads = torch.randn(3, 4, 4)  # two of q, one of k, one of v
    q_weight, k_weight = torch.randn(4), torch.randn(4)
    weights = (q_weight, k_weight) if normed else (None, None)
    operators = make_operators(torch.float32)
    turned = operators.norm_rotate(heads.clone(), 2, 1, weights[0], weights[1], 1e-5, rotary(positions, 12))
    angles = positions[:, None, None] * torch.tensor([1.0, 0.1])
    for x, weight, result in ((heads[:, :2], q_weight, turned[0]), (heads[:, 2:3], k_weight, turned[1])):
        before = F.rms_norm(x, (4,), weight, 1e-5) if normed else x
        expected = torch.complex(before[..., :2], before[..., 2:]) * torch.polar(torch.ones(()), angles)
        torch.testing.assert_close(result, torch.cat((expected.real, expected.imag), dim=-1))


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
