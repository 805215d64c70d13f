from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.artifacts.small import CONFIG, SINGLE, edit_json, write_json, write_model
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.inspect import inspect_model, inspect_named
from tinyllm.artifacts.report import ModelReport
from tinyllm.errors import CheckpointError, ConfigError


@pytest.mark.parametrize("checkpoint", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def test_parameters_are_those_transformers_counts(checkpoint: str, request: pytest.FixtureRequest) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    path: Path = request.getfixturevalue(checkpoint)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    report = inspect_model(open_directory(path))
    assert report.num_parameters == sum(parameter.numel() for parameter in theirs.parameters())
    assert report.can_generate
    assert report.reason is None


def test_report_of_smollm2(smollm2: Path) -> None:
    report = inspect_model(open_directory(smollm2), max_model_len=2048, kv_cache_dtype="float32")
    assert report.architecture == "LlamaForCausalLM"
    assert report.num_parameters == 134_515_008
    assert [(stored.dtype, stored.num_tensors) for stored in report.stored_dtypes] == [("BF16", 272)]
    assert report.context_length == 8192
    assert report.tokenizer == "tokenizer.json"
    assert report.chat_templates == ("default",)
    assert report.eos_token_ids == (2,)
    memory = report.memory
    assert memory is not None
    assert (memory.dtype, memory.weights_bytes) == ("bfloat16", 2 * 134_515_008)
    assert (memory.kv_cache_dtype, memory.kv_bytes_per_token) == ("float32", 2 * 30 * 3 * 64 * 4)
    assert memory.kv_cache_bytes == 2048 * memory.kv_bytes_per_token
    assert memory.total_bytes == memory.weights_bytes + memory.kv_cache_bytes


def test_forecast_follows_the_options(tmp_path: Path) -> None:
    artifacts = open_directory(write_model(tmp_path / "model"))
    whole = inspect_model(artifacts).memory
    half = inspect_model(artifacts, dtype="float16").memory
    assert whole is not None
    assert half is not None
    assert (whole.max_model_len, whole.dtype, whole.kv_cache_dtype) == (128, "float32", "float32")
    assert (half.dtype, half.kv_cache_dtype) == ("float16", "float16")
    assert half.total_bytes * 2 == whole.total_bytes


@pytest.mark.parametrize(
    "options", [{"max_model_len": 0}, {"max_model_len": 129}, {"dtype": "int8"}, {"kv_cache_dtype": "fp8"}]
)
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    artifacts = open_directory(write_model(tmp_path / "model"))
    with pytest.raises(ConfigError, match=next(iter(options))):
        inspect_model(artifacts, **options)


def inspect(model: Path) -> ModelReport:
    return inspect_named(str(model), progress=False)


def test_report_is_json(tmp_path: Path) -> None:
    report = json.loads(json.dumps(inspect(write_model(tmp_path / "model", sharded=True)).to_dict()))
    assert report["config"]["rope"]["kind"] == "default"
    assert report["tensors"][0] == {
        "name": "model.embed_tokens.weight",
        "dtype": "F32",
        "shape": [32, 16],
        "file": "model-00001-of-00002.safetensors",
        "nbytes": 2048,
    }


# models that are not run


def test_another_architecture_is_still_described(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    edit_json(model / "config.json", architectures=["MistralForCausalLM"], sliding_window=64)
    report = inspect(model)
    assert report.architecture == "MistralForCausalLM"
    assert not report.can_generate
    assert "'MistralForCausalLM' is not supported" in (report.reason or "")
    assert (
        report.num_parameters == inspect_model(open_directory(write_model(tmp_path / "llama"))).num_parameters
    )
    assert report.stored_dtypes[0].dtype == "F32"
    assert report.context_length == 128
    assert report.config is not None
    assert report.config["num_hidden_layers"] == 2
    assert report.eos_token_ids == (2, 3)
    assert report.chat_templates == ("default",)
    assert report.sampling_defaults == {"top_p": 0.9}
    assert report.memory is None


def test_a_multimodal_model_is_described_by_its_text_config(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    write_json(
        model / "config.json",
        {"architectures": ["FooForConditionalGeneration"], "text_config": CONFIG, "vision_config": {}},
    )
    report = inspect(model)
    assert report.context_length == 128
    assert report.eos_token_ids == (2, 3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantised ('awq')"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope type 'dynamic'"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ],
)
def test_an_unsupported_feature_is_the_reason(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    model = write_model(tmp_path / "model")
    edit_json(model / "config.json", **changes)
    report = inspect(model)
    assert report.architecture == "LlamaForCausalLM"
    assert reason in (report.reason or "")
    assert report.num_parameters


def test_pickled_weights_are_the_reason(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (model / SINGLE).rename(model / "pytorch_model.bin")
    report = inspect(model)
    assert "pytorch_model.bin" in (report.reason or "")
    assert report.num_parameters is None
    assert report.stored_dtypes == ()


def test_a_damaged_unsupported_model_is_damaged(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    edit_json(model / "config.json", architectures=["MistralForCausalLM"])
    (model / SINGLE).write_bytes(b"")
    with pytest.raises(CheckpointError, match="too few for a safetensors file"):
        inspect(model)


def test_a_gguf_of_another_architecture(tmp_path: Path) -> None:
    import gguf
    import numpy as np

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(512)
    writer.add_token_list(["a", "b"])
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    report = inspect(path)
    assert (report.kind, report.architecture, report.context_length) == ("gguf", "gemma3", 512)
    assert not report.can_generate
    assert "gemma3" in (report.reason or "")
    assert (report.num_parameters, report.tokenizer, report.chat_templates) == (64, "gguf", ("default",))
