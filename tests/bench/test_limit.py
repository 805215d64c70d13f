"""The roofline, held to the numbers of a model that is counted by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyllm.artifacts.directory import open_directory
from tinyllm.bench.limit import Machine, ModelShape
from tinyllm.bench.workload import Workload

SMOLLM2 = ModelShape(
    linears=((960, 576), (576, 576), (3072, 576), (576, 1536)),
    num_layers=30,
    head=(49152, 576),
    kv_elements=11_520,
    attention_flops=69_120,
)


def test_weights_of_smollm2() -> None:
    assert SMOLLM2.layer_weights == pytest.approx(106.2e6, rel=1e-3)
    assert SMOLLM2.head_weights == pytest.approx(28.3e6, rel=1e-3)


def test_shape_follows_the_config(tiny_llama: Path) -> None:
    artifacts = open_directory(tiny_llama)
    shape = ModelShape.of(artifacts.config)
    matrices = [info for name, info in artifacts.weights.tensors.items() if "proj" in name]
    assert shape.layer_weights == sum(info.shape[0] * info.shape[1] for info in matrices)
    assert shape.head == artifacts.weights.tensors["lm_head.weight"].shape
    assert shape.kv_elements == 2 * 4 * 2 * 16


def test_one_stream_is_bound_by_reading_and_many_by_arithmetic() -> None:
    one, many = Workload(1, 32, 64), Workload(64, 32, 64)
    reader, computer = Machine(1e9, 1e30), Machine(1e30, 1e9)
    weights = SMOLLM2.layer_weights + SMOLLM2.head_weights
    assert SMOLLM2.decode_rate(reader, one, 2, 2) == pytest.approx(
        1e9 / (2 * weights + 64 * 11_520 * 2), rel=1e-9
    )
    assert SMOLLM2.decode_rate(computer, one, 2, 2) == SMOLLM2.decode_rate(computer, many, 2, 2)
    both = Machine(1e9, 1e9)
    assert SMOLLM2.decode_rate(both, one, 2, 2) == min(
        SMOLLM2.decode_rate(reader, one, 2, 2), SMOLLM2.decode_rate(computer, one, 2, 2)
    )


def test_prefill_takes_the_products_of_every_token_and_the_head_once() -> None:
    flops = 100 * (2 * SMOLLM2.layer_weights + 69_120 * 50) + 2 * SMOLLM2.head_weights
    rate = SMOLLM2.prefill_rate(Machine(1e30, 1e9), Workload(1, 100, 2), 2)
    assert rate == pytest.approx(100 / (flops / 1e9))
