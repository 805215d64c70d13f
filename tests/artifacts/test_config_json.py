from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.artifacts.small import CONFIG
from tinyllm.artifacts.config_json import architecture_of, parse_config
from tinyllm.artifacts.json_file import parse_object
from tinyllm.artifacts.model import ModelConfig, RopeConfig
from tinyllm.errors import ArtifactError, CheckpointError, UnsupportedModelError

LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def parse(**changes: Any) -> ModelConfig:
    return parse_config({**CONFIG, **changes})


@pytest.mark.parametrize("checkpoint", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def test_agrees_with_transformers(checkpoint: str, request: pytest.FixtureRequest) -> None:
    from transformers import AutoConfig

    path: Path = request.getfixturevalue(checkpoint)
    theirs = AutoConfig.from_pretrained(path)
    ours = parse_config(json.loads((path / "config.json").read_text()))
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "rms_norm_eps",
        "tie_word_embeddings",
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    heads = theirs.hidden_size // theirs.num_attention_heads
    assert ours.head_dim == getattr(theirs, "head_dim", heads)
    assert ours.rope.kind == theirs.rope_parameters["rope_type"]
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.dtype == str(theirs.dtype).removeprefix("torch.")


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Qwen3"])
def test_defaults_are_those_of_transformers(architecture: str) -> None:
    import transformers

    sizes = {
        name: CONFIG[name]
        for name in (
            "vocab_size",
            "intermediate_size",
            "num_hidden_layers",
        )
    } | {"hidden_size": 4096, "num_attention_heads": 64}
    theirs = getattr(transformers, f"{architecture}Config")(**sizes)
    ours = parse_config({"architectures": [f"{architecture}ForCausalLM"], **sizes})
    assert ours.num_key_value_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 64)
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.rope == RopeConfig(theta=theirs.rope_parameters["rope_theta"])


def test_old_and_new_names_mean_the_same() -> None:
    old = parse(rope_theta=5e5, rope_scaling=LLAMA3, torch_dtype="bfloat16")
    new = {name: value for name, value in CONFIG.items() if name not in ("rope_theta", "torch_dtype")}
    assert parse_config(new | {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}, "dtype": "bfloat16"}) == old
    assert old.dtype == "bfloat16"
    assert old.rope == RopeConfig(
        "llama3",
        5e5,
        8.0,
        original_max_position_embeddings=64,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_scaling": None}, RopeConfig()),
        ({"rope_scaling": {}}, RopeConfig()),
        ({"rope_theta": None}, RopeConfig()),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeConfig("linear", factor=2.0)),
        (
            {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}},
            RopeConfig("linear", factor=2.0),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
            RopeConfig("yarn", factor=4.0, original_max_position_embeddings=32),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 32}},
            RopeConfig("yarn", factor=4.0, original_max_position_embeddings=32),
        ),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 4,
                    "beta_fast": None,
                    "truncate": False,
                    "mscale": 1,
                }
            },
            RopeConfig("yarn", factor=4.0, original_max_position_embeddings=128, truncate=False, mscale=1.0),
        ),
        (
            {
                "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8},
                "original_max_position_embeddings": 16,
            },
            RopeConfig(
                "llama3",
                factor=8.0,
                original_max_position_embeddings=16,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
            ),
        ),
    ],
)
def test_rope(changes: dict[str, Any], expected: RopeConfig) -> None:
    assert parse(**changes).rope == expected


def test_biases_follow_the_architecture() -> None:
    llama = parse(attention_bias=True, mlp_bias=True)
    assert (llama.attention_bias, llama.attention_output_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = parse(architectures=["Qwen2ForCausalLM"], attention_bias=False, mlp_bias=True)
    assert (qwen2.attention_bias, qwen2.attention_output_bias, qwen2.mlp_bias) == (True, False, False)
    qwen3 = parse(architectures=["Qwen3ForCausalLM"], attention_bias=True)
    assert (qwen3.attention_bias, qwen3.attention_output_bias) == (True, True)
    assert (llama.qk_norm, qwen2.qk_norm, qwen3.qk_norm) == (False, False, True)


def test_null_key_value_heads_are_the_heads() -> None:
    assert parse(num_key_value_heads=None).num_key_value_heads == 4


def test_explicit_head_dim_need_not_divide_the_width() -> None:
    assert parse(head_dim=10).head_dim == 10
    assert parse().head_dim == 4


def test_architecture_from_the_model_type() -> None:
    assert architecture_of({"model_type": "qwen3"}) == "Qwen3ForCausalLM"
    assert architecture_of({"model_type": "mamba2"}) == "mamba2"


@pytest.mark.parametrize(
    "window",
    [
        {"use_sliding_window": False, "sliding_window": 4096},
        {"use_sliding_window": True, "sliding_window": None},
        {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 4096, "layer_types": ["full_attention"] * 2},
    ],
)
def test_a_sliding_window_that_no_layer_uses_is_fine(window: dict[str, Any]) -> None:
    parse(architectures=["Qwen2ForCausalLM"], **window)


def test_a_window_in_use_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="sliding window"):
        parse(architectures=["Qwen2ForCausalLM"], use_sliding_window=True, max_window_layers=1)


def test_error_names_file_and_field() -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_config({**CONFIG, "hidden_size": "wide"}, file="other.json")
    assert caught.value.file == "other.json"
    assert str(caught.value) == "other.json: hidden_size must be an integer, not 'wide'"


@pytest.mark.parametrize("name", ["beta_fast", "beta_slow"])
def test_a_pair_that_hardly_turns_is_refused(name: str) -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert parse(rope_scaling=yarn | {name: 0}).rope == parse(rope_scaling=yarn).rope
    with pytest.raises(CheckpointError, match=name):
        parse(rope_scaling=yarn | {name: 1e-310})


NAMES = [*CONFIG, "rope_scaling", "rope_parameters", "head_dim", "layer_types", "dtype", "mlp_bias"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=0, max_value=10**50)
    | st.floats()
    | st.text(string.printable, max_size=10)
    | st.sampled_from(["yarn", "linear", "llama3", "float16"])
)
KEYS = st.sampled_from(["rope_type", "type", "factor", "rope_theta", *LLAMA3, "beta_fast"])
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(KEYS, SCALARS, max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6))
def test_any_change_of_a_config_parses_or_raises_a_typed_error(changes: dict[str, Any]) -> None:
    try:
        config = parse(**changes)
    except ArtifactError as error:
        assert len(str(error)) < 400  # noqa: PT017
    else:
        assert config.head_dim % 2 == 0
        assert config.num_attention_heads % config.num_key_value_heads == 0


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 50))
def test_any_bytes_as_config_parse_or_raise_a_typed_error(noise: bytes, at: int, cut: int) -> None:
    valid = json.dumps(CONFIG).encode()
    for data in (noise, valid[:at] + noise + valid[at + cut :]):
        try:
            parse_config(parse_object(data, "config.json"))
        except ArtifactError as error:
            assert str(error).isprintable()  # noqa: PT017
