from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts.small import CONFIG
from tinyllm.artifacts.config_json import parse_config
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.layout import check_against_layout, expected_tensors
from tinyllm.artifacts.model import ModelConfig, TensorInfo
from tinyllm.errors import CheckpointError

LLAMA = parse_config(CONFIG)
UNTIED = parse_config(CONFIG | {"tie_word_embeddings": False})


def tensors(config: ModelConfig) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(name, "F32", shape, "model.safetensors", 0)
        for name, shape in expected_tensors(config).items()
    }


@pytest.mark.parametrize("checkpoint", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def test_shapes_are_those_transformers_wrote(checkpoint: str, request: pytest.FixtureRequest) -> None:
    from safetensors import safe_open

    path: Path = request.getfixturevalue(checkpoint)
    written: dict[str, tuple[int, ...]] = {}
    for file in path.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            written |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    artifacts = open_directory(path)
    assert expected_tensors(artifacts.config) == written
    assert {name: info.shape for name, info in artifacts.weights.tensors.items()} == written


OPTIONS = list(itertools.product(("Llama", "Qwen2", "Qwen3"), (False, True), (False, True), (None, 6)))


@pytest.mark.parametrize(("architecture", "bias", "tied", "head_dim"), OPTIONS)
def test_names_and_shapes_are_those_of_the_transformers_model(
    architecture: str, bias: bool, tied: bool, head_dim: int | None
) -> None:
    import torch
    import transformers

    config: dict[str, Any] = CONFIG | {
        "architectures": [f"{architecture}ForCausalLM"],
        "attention_bias": bias,
        "mlp_bias": bias,
        "tie_word_embeddings": tied,
        "head_dim": head_dim or 4,
    }
    options = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    with torch.device("meta"):
        model = getattr(transformers, f"{architecture}ForCausalLM")(
            getattr(transformers, f"{architecture}Config")(**options)
        )
    theirs = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert expected_tensors(parse_config(config)) == theirs


def test_a_head_beside_a_tied_one_and_old_buffers_are_left_out() -> None:
    stored = tensors(UNTIED)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    stored[name] = TensorInfo(name, "F32", (2,), "model.safetensors", 8)
    checked = check_against_layout(LLAMA, stored, "model.safetensors")
    assert list(checked) == list(expected_tensors(LLAMA))


@pytest.mark.parametrize("name", expected_tensors(UNTIED))
def test_each_missing_tensor_is_named(name: str) -> None:
    stored = tensors(UNTIED)
    del stored[name]
    with pytest.raises(CheckpointError) as caught:
        check_against_layout(UNTIED, stored, "index.json")
    assert (caught.value.file, caught.value.tensor) == ("index.json", name)


@pytest.mark.parametrize("name", expected_tensors(UNTIED))
def test_each_wrong_shape_is_named(name: str) -> None:
    stored = tensors(UNTIED)
    stored[name] = TensorInfo(name, "F32", (*stored[name].shape, 1), "shard.safetensors", 0)
    with pytest.raises(CheckpointError) as caught:
        check_against_layout(UNTIED, stored, "index.json")
    assert (caught.value.file, caught.value.tensor) == ("shard.safetensors", name)


def test_a_tensor_without_a_place_is_refused() -> None:
    stored = tensors(LLAMA)
    name = "model.layers.0.self_attn.q_proj.bias"  # computing without it would be silently wrong
    stored[name] = TensorInfo(name, "F32", (16,), "model.safetensors", 64)
    with pytest.raises(CheckpointError, match=r"q_proj\.bias' has no place"):
        check_against_layout(LLAMA, stored, "model.safetensors")
