"""The GGUF file that is made of a checkpoint is the same model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benches.gguf_of import gguf_of, write_gguf
from tests.checkpoints import checkpoint
from tinyllm.artifacts.resolve import open_model
from tinyllm.errors import ConfigError
from tinyllm.text.tokenizer import Tokenizer, load_tokenizer

TEXTS = (
    "Hello, world",
    "  x = 10 + 2\n",
    "日本語 and émojis 🙂",
    "<|im_start|>user\nhi<|im_end|>",
    "1234567",
)


@pytest.mark.weights
def test_it_is_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(checkpoint("tiny-qwen3"), path, "F32")
    ours, theirs = open_model(str(checkpoint("tiny-qwen3"))), open_model(str(path))
    assert theirs.eos_token_ids == ours.eos_token_ids
    for field in ("architecture", "vocab_size", "head_dim", "num_key_value_heads", "rms_norm_eps", "rope"):
        assert getattr(theirs.config, field) == getattr(ours.config, field)
    assert theirs.weights.tensors.keys() == ours.weights.tensors.keys()
    for name, info in ours.weights.tensors.items():
        one, other = torch.empty(info.shape), torch.empty(info.shape)
        ours.weights.read_into(name, one)
        theirs.weights.read_into(name, other)
        assert torch.equal(one, other), name
    encoders: list[Tokenizer] = []
    for model in (ours, theirs):
        assert model.tokenizer is not None
        encoders.append(load_tokenizer(model.tokenizer))
    for text in TEXTS:
        assert encoders[0].encode(text) == encoders[1].encode(text)


@pytest.mark.weights
def test_what_it_cannot_make_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--gguf"):
        write_gguf(checkpoint("tiny-llama"), tmp_path / "model.gguf", "F32")
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.weights
def test_a_file_is_made_once(tmp_path: Path) -> None:
    made = gguf_of(checkpoint("tiny-qwen3"), None, "float32", tmp_path)
    assert made.name == "tiny-qwen3-F32.gguf"
    before = made.stat()
    assert gguf_of(checkpoint("tiny-qwen3"), None, "float32", tmp_path) == made
    assert (made.stat().st_ino, made.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert list(tmp_path.iterdir()) == [made]
