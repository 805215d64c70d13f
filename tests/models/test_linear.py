from __future__ import annotations

import pytest
import torch

from tests.models.support import CPU
from tinyllm.artifacts.model import TensorInfo
from tinyllm.models import linear
from tinyllm.models.linear import Linear, can_pack
from tinyllm.models.weights import WeightReader

SHAPES = [(576, 960), (576, 3072), (1536, 576), (96, 160), (64, 384), (60, 90), (1024, 4096), (17, 5)]

PACKED_DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype, CPU), reason="not packed on this CPU"))
    for dtype in (torch.float32, torch.bfloat16)
]


class Tensors:
    """A `WeightSource` over tensors in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._values = tensors
        self.tensors = {
            name: TensorInfo(name, "F32", tuple(value.shape), "memory", value.nbytes)
            for name, value in tensors.items()
        }

    def read_into(self, name: str, out: torch.Tensor) -> None:
        out.copy_(self._values[name])


def make(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    layer = Linear("proj", bias=bias is not None)
    layer.bias = bias
    layer.set_weight(weight)
    return layer


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_is_the_exact_product_within_rounding(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs, outputs = shape
    weight, bias, x = (torch.randn(*size).to(dtype) for size in ((outputs, inputs), (outputs,), (9, inputs)))
    exact = x.double() @ weight.double().T + bias.double()
    error = (make(weight, bias)(x).double() - exact).abs().max() / exact.abs().max()
    assert error < (1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_does_not_depend_on_the_others(
    shape: tuple[int, int], dtype: torch.dtype, threads: int
) -> None:
    torch.set_num_threads(threads)
    inputs, outputs = shape
    layer, x = make(torch.randn(outputs, inputs).to(dtype)), torch.randn(140, inputs).to(dtype)
    whole = layer(x)
    for rows in (1, 2, 3, 5, 8, 16, 31, 64, 129):
        for start in (0, 1, 140 - rows):
            assert torch.equal(layer(x[start : start + rows]), whole[start : start + rows])


def test_no_rows_give_no_rows() -> None:
    assert make(torch.randn(7, 5))(torch.empty(0, 5)).shape == (0, 7)


def test_parts_are_stacked_in_order_and_have_one_bias_each() -> None:
    tensors = {f"attn.{part}.weight": torch.randn(rows, 6) for part, rows in (("q", 8), ("k", 4), ("v", 2))}
    tensors |= {f"attn.{part}.bias": torch.randn(rows) for part, rows in (("q", 8), ("k", 4), ("v", 2))}
    layer = Linear("q", "k", "v", bias=True)
    layer.load("attn.qkv", WeightReader(Tensors(tensors), dtype=torch.float32, device=CPU))
    x = torch.randn(3, 6)
    expected = [
        torch.nn.functional.linear(x, tensors[f"attn.{part}.weight"], tensors[f"attn.{part}.bias"])
        for part in "qkv"
    ]
    torch.testing.assert_close(layer(x), torch.cat(expected, dim=1))


def test_a_layer_at_the_top_has_no_prefix() -> None:
    layer = Linear("lm_head")
    tensors = Tensors({"lm_head.weight": torch.eye(4)})
    layer.load("lm_head", WeightReader(tensors, dtype=torch.float32, device=CPU))
    torch.testing.assert_close(layer(torch.eye(4)), torch.eye(4))


def test_without_the_private_operators_the_public_one_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_mkldnn", object())
    assert not can_pack(torch.float32, CPU)
    weight, x = torch.randn(5, 3), torch.randn(1, 3)
    layer = make(weight)
    assert layer.weight is weight
    assert torch.equal(layer(x), torch.nn.functional.linear(x, weight))


def test_what_can_be_packed() -> None:
    assert not can_pack(torch.float16, CPU)
    assert not can_pack(torch.float32, torch.device("cuda"))
    if torch.__version__.startswith("2.13"):  # the version that CI pins must have them
        assert can_pack(torch.float32, CPU)
