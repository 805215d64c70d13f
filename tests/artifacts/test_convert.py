"""Converting GGUF to a directory that transformers loads: the same weights, the same ids, all or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.artifacts.gguf_files import RawGGUF, random_weights, write_model
from tinyllm.artifacts import convert
from tinyllm.artifacts.convert import convert_gguf, write_safetensors
from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.gguf import open_gguf
from tinyllm.artifacts.model import ModelArtifacts, TokenizerSource
from tinyllm.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedModelError
from tinyllm.text.tokenizer import load_tokenizer


def write_tokenizer(source: TokenizerSource, directory: Path) -> None:
    load_tokenizer(source).save(directory)


def convert_small(source: Path, out: Path, **options: Any) -> None:
    convert_gguf(source, out, write_tokenizer=write_tokenizer, progress=False, **options)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    extra = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ tools }}"}
    return write_model(tmp_path / "m.gguf", random_weights("qwen3"), arch="qwen3", extra=extra)


def assert_same_weights(ours: ModelArtifacts, theirs: ModelArtifacts, dtype: torch.dtype) -> None:
    assert ours.weights.tensors.keys() == theirs.weights.tensors.keys()
    for name, info in ours.weights.tensors.items():
        one, other = (torch.empty(info.shape, dtype=dtype) for _ in range(2))
        ours.weights.read_into(name, one)
        theirs.weights.read_into(name, other)
        assert torch.equal(one, other), name


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_a_converted_model_is_the_same_model(source: Path, tmp_path: Path, dtype: str) -> None:
    convert_small(source, tmp_path / "out", dtype=dtype)
    before, after = open_gguf(source), open_directory(tmp_path / "out")
    expected = "float32" if dtype == "auto" else dtype
    assert after.config.dtype == expected
    assert_same_weights(before, after, getattr(torch, expected))
    assert {**vars_of(before.config), "dtype": expected} == vars_of(after.config)
    assert after.eos_token_ids == before.eos_token_ids
    assert after.chat_templates == before.chat_templates
    assert after.sampling_defaults == before.sampling_defaults


def vars_of(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__slots__}


def test_the_safetensors_library_reads_what_is_written(source: Path, tmp_path: Path) -> None:
    convert_small(source, tmp_path / "out")
    loaded = load_file(tmp_path / "out" / "model.safetensors")
    model = open_gguf(source)
    assert loaded.keys() == model.weights.tensors.keys()
    for name, tensor in loaded.items():
        out = torch.empty_like(tensor)
        model.weights.read_into(name, out)
        assert torch.equal(out, tensor)


def test_large_models_are_written_in_shards(source: Path, tmp_path: Path) -> None:
    model = open_gguf(source)
    write_safetensors(model.weights, tmp_path, dtype="bfloat16", progress=False, shard_bytes=600_000)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    loaded = {name: (shard.name, tensor) for shard in shards for name, tensor in load_file(shard).items()}
    assert index["weight_map"] == {name: shard for name, (shard, _) in loaded.items()}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for _, tensor in loaded.values())
    assert loaded.keys() == model.weights.tensors.keys()


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_transformers_loads_it(arch: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    rope = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    path = write_model(
        tmp_path / "m.gguf",
        random_weights(arch),
        arch=arch,
        extra={f"{arch}.{key}": value for key, value in rope.items()},
    )
    convert_small(path, tmp_path / "out")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    state = model.state_dict()
    ours = open_gguf(path)
    for name, info in ours.weights.tensors.items():
        out = torch.empty(info.shape)
        ours.weights.read_into(name, out)
        assert torch.equal(out, state[name]), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token == "<|im_end|>"
    assert (
        tokenizer.chat_template == {"default": "{{ messages }}"}
        or tokenizer.chat_template == "{{ messages }}"
    )


def test_what_is_there_stays_unless_forced(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert_small(source, out)
    (out / "note.txt").write_text("old")
    with pytest.raises(ConfigError, match="--force"):
        convert_small(source, out)
    assert (out / "note.txt").exists()
    convert_small(source, out, force=True)
    assert not (out / "note.txt").exists()
    assert open_directory(out).config.architecture == "Qwen3ForCausalLM"


def test_force_never_replaces_something_else(source: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not a model's directory"):
        convert_small(source, home, force=True)
    link = tmp_path / "link"
    link.symlink_to(home)
    with pytest.raises(ConfigError, match="not a model's directory"):
        convert_small(source, link, force=True)
    assert (home / "letters.txt").read_text() == "dear"


def test_an_empty_directory_may_be_filled(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    convert_small(source, tmp_path / "out")
    assert open_directory(tmp_path / "out").config.num_hidden_layers == 2


def test_a_fault_leaves_nothing_behind(source: Path, tmp_path: Path) -> None:
    def fail(tokenizer: TokenizerSource, directory: Path) -> None:
        assert (directory / "model.safetensors").exists()
        raise RuntimeError("boom")

    before = sorted(os.listdir(tmp_path))
    with pytest.raises(RuntimeError, match="boom"):
        convert_gguf(source, tmp_path / "out", write_tokenizer=fail, progress=False)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_fault_keeps_the_old_one(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    convert_small(source, out)
    kept = (out / "model.safetensors").read_bytes()
    monkeypatch.setattr(convert, "write_safetensors", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        convert_small(source, out, force=True)
    assert (out / "model.safetensors").read_bytes() == kept


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (lambda file: file.drop("tokenizer.ggml.model"), UnsupportedModelError),
        (lambda file: file.tensors.pop(), CheckpointError),
    ],
)
def test_what_cannot_be_converted(edit: Any, error: type[Exception], tmp_path: Path) -> None:
    file = RawGGUF()
    edit(file)
    (tmp_path / "m.gguf").write_bytes(file.build())
    with pytest.raises(error):
        convert_small(tmp_path / "m.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_arguments(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        convert_small(tmp_path / "missing.gguf", tmp_path / "out")
    with pytest.raises(ConfigError, match="dtype"):
        convert_small(source, tmp_path / "out", dtype="int8")
    with pytest.raises(ConfigError, match="no directory"):
        convert_small(source, tmp_path / "missing" / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.weights
def test_smollm2_converted_equals_transformers_own_reading(
    smollm2: Path, smollm2_gguf: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    convert_small(smollm2_gguf, tmp_path / "out")
    ours, theirs = (AutoModelForCausalLM.from_pretrained(path) for path in (tmp_path / "out", smollm2))
    assert ours.dtype == theirs.dtype == torch.bfloat16
    expected = theirs.state_dict()
    assert ours.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())
    texts = [
        "Hello, world!",
        "def f(x):\n\treturn x  # ü",
        "12345 日本語 🦙",
        "<|im_start|>user\nHi<|im_end|>\n",
    ]
    one, other = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "out", smollm2))
    for text in texts:
        assert one(text)["input_ids"] == other(text)["input_ids"]
        assert one.decode(one(text)["input_ids"]) == text
    messages = [{"role": "user", "content": "Hi"}]
    assert one.apply_chat_template(messages) == other.apply_chat_template(messages)
