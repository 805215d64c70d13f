from __future__ import annotations

import pytest
import torch

from tests.models.support import CPU
from tinyllm.artifacts.model import TensorInfo
from tinyllm.models import linear
from tinyllm.models.linear import Linear, can_pack
from tinyllm.models.onednn import OneDNN
from tinyllm.models.weights import WeightReader
from tinyllm.native.library import NativeUnavailableError

SHAPES = [(576, 960), (576, 3072), (1536, 576), (96, 160), (64, 384), (60, 90), (1024, 4096), (17, 5)]

PACKED_DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype, CPU), reason="not packed on this CPU"))
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.fixture(params=["by blocks", "packed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way of multiplying that promises something."""
    if request.param == "packed":
        monkeypatch.setattr(OneDNN, "find", lambda dtype: None)
    return str(request.param)


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


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", PACKED_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_is_the_exact_product_within_rounding(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    inputs, outputs = shape
    weight, bias, x = (torch.randn(*size).to(dtype) for size in ((outputs, inputs), (outputs,), (9, inputs)))
    exact = x.double() @ weight.double().T + bias.double()
    error = (make(weight, bias)(x).double() - exact).abs().max() / exact.abs().max()
    assert error < (1e-5 if dtype == torch.float32 else 5e-3)


@pytest.mark.usefixtures("way")
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


@pytest.mark.usefixtures("way")
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


def test_the_fast_way_is_taken_where_all_of_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if OneDNN.find(torch.float32) is None:
        pytest.skip("not on this processor")
    assert make(torch.randn(5, 4)).onednn is not None
    assert make(torch.randn(5, 3)).onednn is not None
    if can_pack(torch.bfloat16, CPU) and OneDNN.find(torch.bfloat16) is not None:
        assert make(torch.randn(5, 4).bfloat16()).onednn is not None
        assert make(torch.randn(5, 3).bfloat16()).onednn is None, "inputs come in pairs"
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        assert OneDNN.find(torch.float32) is None
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "AVX2")
            assert OneDNN.find(torch.float32) is None
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert OneDNN.find(torch.float32) is None
    assert OneDNN.find(torch.float16) is None
    assert make(torch.randn(5, 4)).onednn is None


def test_without_kernels_weights_are_packed_by_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise NativeUnavailableError("no compiler")

    monkeypatch.setattr(linear, "load_library", unavailable)
    layer = make(torch.randn(5, 4))
    assert layer.onednn is None
    assert layer.is_packed == can_pack(torch.float32, CPU)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = make(torch.randn(5, 4))
    if layer.onednn is None:
        pytest.skip("PyTorch refuses it")
    for x in (torch.randn(2, 5), torch.randn(2, 4, dtype=torch.float64)):
        with pytest.raises(ValueError, match="4 columns"):
            layer(x)
    x = torch.randn(4, 6).t()
    assert torch.equal(layer(x), layer(x.contiguous()))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with pytest.raises(RuntimeError, match="switched off"):
        layer(x)


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
