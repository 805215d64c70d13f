"""Tokenizers of the real checkpoints, and the same ones as ``transformers`` reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinyllm.artifacts.gguf import open_gguf
from tinyllm.artifacts.model import GGUFVocabulary, TokenizerSource
from tinyllm.text.tokenizer import Tokenizer, load_tokenizer


def directory_source(directory: Path) -> TokenizerSource:
    """Describe the tokenizer of an ordinary directory."""
    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    return TokenizerSource("tokenizer.json", directory / "tokenizer.json", config)


def reference_tokenizer(directory: Path) -> Any:
    """Read a directory's tokenizer with transformers."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def declared_tokenizer(directory: Path) -> Any:
    """Read a directory's tokenizer with the class of transformers that its own config names."""
    import transformers

    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    return getattr(transformers, config["tokenizer_class"]).from_pretrained(directory)


@pytest.fixture(scope="session")
def smol(smollm2: Path) -> Tokenizer:
    """SmolLM2's tokenizer: byte-level BPE without BOS."""
    return load_tokenizer(directory_source(smollm2))


@pytest.fixture(scope="session")
def qwen3(tiny_qwen3: Path) -> Tokenizer:
    """Qwen3's tokenizer: byte-level BPE with NFC and added tokens that are not special."""
    return load_tokenizer(directory_source(tiny_qwen3))


@pytest.fixture(scope="session")
def smol_reference(smollm2: Path) -> Any:
    """SmolLM2's tokenizer in transformers."""
    return reference_tokenizer(smollm2)


@pytest.fixture(scope="session")
def qwen3_reference(tiny_qwen3: Path) -> Any:
    """Qwen3's tokenizer in transformers."""
    return reference_tokenizer(tiny_qwen3)


@pytest.fixture(scope="session")
def llama3(tiny_llama: Path) -> Tokenizer:
    """The tokenizer of the tiny Llama checkpoint."""
    return load_tokenizer(directory_source(tiny_llama))


@pytest.fixture(scope="session")
def llama3_reference(tiny_llama: Path) -> Any:
    """The tokenizer of the tiny Llama checkpoint in transformers."""
    return reference_tokenizer(tiny_llama)


@pytest.fixture(scope="session")
def qwen2(tiny_qwen2: Path) -> Tokenizer:
    """The tokenizer of the tiny Qwen2 checkpoint, whose rules are not those of Qwen2's own."""
    return load_tokenizer(directory_source(tiny_qwen2))


@pytest.fixture(scope="session")
def qwen2_reference(tiny_qwen2: Path) -> Any:
    """The tokenizer of the tiny Qwen2 checkpoint in transformers.

    ``AutoTokenizer`` would put Qwen2's published splitting rules in place of those in the checkpoint's files,
    because the model is a Qwen2 (docs/models.md).
    """
    return declared_tokenizer(tiny_qwen2)


@pytest.fixture(scope="session")
def smol_gguf(smollm2_gguf: Path) -> TokenizerSource:
    """SmolLM2's tokenizer as its GGUF file describes it."""
    source = open_gguf(smollm2_gguf).tokenizer
    assert source is not None
    return source


@pytest.fixture(scope="session")
def smol_vocabulary(smol_gguf: TokenizerSource) -> GGUFVocabulary:
    """SmolLM2's vocabulary, from its GGUF file."""
    assert smol_gguf.vocabulary is not None
    return smol_gguf.vocabulary


@pytest.fixture(scope="session")
def llama_vocabulary() -> GGUFVocabulary:
    """A small SentencePiece vocabulary with every byte, as a GGUF file would have it."""
    words = [
        "▁",
        "▁▁",
        "h",
        "e",
        "l",
        "o",
        "he",
        "ll",
        "llo",
        "hello",
        "▁hello",
        "w",
        "r",
        "d",
        "or",
        "▁wor",
        "▁w",
    ]
    words += [
        "ld",
        "▁world",
        "é",
        "漢",
        "▁leading",
        "▁x",
        "x",
        "a",
        "i",
        "n",
        "g",
        "le",
        "▁le",
        "▁lea",
        "ding",
        "di",
    ]
    words += ["ng"]
    control = ["<unk>", "<s>", "</s>"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*control, *raw, *words]
    return GGUFVocabulary(
        model="llama",
        pre="default",
        tokens=tuple(tokens),
        token_types=(2, 3, 3, *[6] * 256, *[1] * len(words)),
        scores=tuple([0.0] * 259 + [-float(i) for i in range(len(words))]),
        merges=(),
        add_space_prefix=True,
    )


@pytest.fixture(scope="session")
def llama(llama_vocabulary: GGUFVocabulary) -> Tokenizer:
    """The tokenizer of `llama_vocabulary`: strips one leading space, falls back to bytes, adds BOS."""
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    return load_tokenizer(TokenizerSource("gguf", None, config, llama_vocabulary))
