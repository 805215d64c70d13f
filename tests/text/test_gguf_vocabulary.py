"""Tokenizers from GGUF metadata: the same ids as the model's own tokenizer, and as the rules' other forms."""

from __future__ import annotations

import dataclasses
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.text.conftest import directory_source
from tests.text.strings import STRINGS
from tinyllm.artifacts.model import GGUFVocabulary, TokenizerSource
from tinyllm.errors import TokenizerError, UnsupportedModelError
from tinyllm.text.gguf_vocabulary import PRE_TOKENIZERS, build_tokenizer
from tinyllm.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def from_gguf(smol_gguf: TokenizerSource) -> Tokenizer:
    """SmolLM2's tokenizer, built from its GGUF file."""
    return load_tokenizer(smol_gguf)


def test_smollm_ids_are_those_of_transformers(from_gguf: Tokenizer, smol: Tokenizer) -> None:
    """The directory was written by transformers, which read the same file with its own GGUF reader."""
    for text in STRINGS:
        assert from_gguf.encode(text) == smol.encode(text), text
    assert (from_gguf.bos_token_id, from_gguf.eos_token_id) == (smol.bos_token_id, smol.eos_token_id)
    assert from_gguf.special_token_ids == smol.special_token_ids


def as_vocabulary(directory: Path, pre: str) -> GGUFVocabulary:
    """Describe a directory's byte-level tokenizer as a GGUF file would."""
    data: dict[str, Any] = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {**data["model"]["vocab"], **{t["content"]: t["id"] for t in data["added_tokens"]}}
    added = {token["id"]: 3 if token["special"] else 4 for token in data["added_tokens"]}
    tokens = sorted(ids, key=lambda token: ids[token])
    return GGUFVocabulary(
        model="gpt2",
        pre=pre,
        tokens=tuple(tokens),
        token_types=tuple(added.get(i, 1) for i in range(len(tokens))),
        scores=(),
        merges=tuple(" ".join(merge) for merge in data["model"]["merges"]),
        add_space_prefix=False,
    )


def test_qwen2_rules_give_qwen3s_ids(qwen3: Tokenizer, tiny_qwen3: Path) -> None:
    vocabulary = as_vocabulary(tiny_qwen3, "qwen2")
    tokenizer = load_tokenizer(TokenizerSource("gguf", None, {"eos_token": "<|im_end|>"}, vocabulary))
    for text in STRINGS:
        assert tokenizer.encode(text) == qwen3.encode(text), text
    assert tokenizer.special_token_ids == qwen3.special_token_ids


def test_gpt2_rules_are_those_of_the_byte_level_splitter(smollm2: Path, smol: Tokenizer) -> None:
    tokenizer = load_tokenizer(TokenizerSource("gguf", None, {}, as_vocabulary(smollm2, "gpt-2")))
    for text in STRINGS:
        assert tokenizer.encode(text) == smol.encode(text), text


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_rule_keeps_all_of_the_text(pre: str, smol_vocabulary: GGUFVocabulary, smol: Tokenizer) -> None:
    """All but the few control characters that SmolLM2 has no token for."""
    vocabulary = dataclasses.replace(smol_vocabulary, pre=pre)
    tokenizer = load_tokenizer(TokenizerSource("gguf", None, {}, vocabulary))
    for text in STRINGS[::5]:
        text = unicodedata.normalize("NFC", text) if pre in ("qwen2", "deepseek-r1-qwen") else text
        expected = smol.decode(smol.encode(text), skip_special_tokens=False)
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == expected


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("llama-bpe", "12345 It'S  x\n\n y", ["123", "45", "ĠIt", "'S", "Ġ", "Ġx", "ĊĊ", "Ġy"]),
        ("qwen2", "123 a", ["1", "2", "3", "Ġa"]),
        ("smollm", "a 12  3", ["a", "Ġ12", "Ġ", "Ġ3"]),
        ("starcoder", "a 12  3", ["a", "Ġ", "1", "2", "ĠĠ", "3"]),
        ("gpt-2", "a 12  3", ["a", "Ġ12", "Ġ", "Ġ3"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", "Ġ", "1", "2"]),
        ("default", "1234 a,b", ["123", "4", "Ġa", ",", "b"]),
    ],
)
def test_rules_split_as_published(
    pre: str, text: str, words: list[str], smol_vocabulary: GGUFVocabulary
) -> None:
    backend = build_tokenizer(dataclasses.replace(smol_vocabulary, pre=pre), {})
    assert backend.pre_tokenizer is not None
    assert [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)] == words


def test_llama_merges_by_score_and_falls_back_to_bytes(llama: Tokenizer) -> None:
    pieces = [llama.piece(i) for i in llama.encode("hello world 🦙")]
    assert pieces == ["<s>", "▁hello", "▁world", "▁", "<0xF0>", "<0x9F>", "<0xA6>", "<0x99>"]
    assert llama.decode(llama.encode("hello world 🦙")) == "hello world 🦙"


def test_llama_without_space_prefix(llama_vocabulary: GGUFVocabulary) -> None:
    vocabulary = dataclasses.replace(llama_vocabulary, add_space_prefix=False)
    tokenizer = load_tokenizer(TokenizerSource("gguf", None, {}, vocabulary))
    assert [tokenizer.piece(i) for i in tokenizer.encode("hello")] == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


@pytest.mark.parametrize("pre", ["deepseek-v3", "made-up", "GPT-2"])
def test_unknown_rules_are_refused_by_name(pre: str, smol_vocabulary: GGUFVocabulary) -> None:
    with pytest.raises(UnsupportedModelError, match=pre):
        build_tokenizer(dataclasses.replace(smol_vocabulary, pre=pre), {})


def test_unknown_models_are_refused_by_name(smol_vocabulary: GGUFVocabulary) -> None:
    with pytest.raises(UnsupportedModelError, match="bert"):
        build_tokenizer(dataclasses.replace(smol_vocabulary, model="bert"), {})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ()}, "empty"),
        ({"tokens": ("a", "a"), "token_types": (1, 1), "scores": (0.0, 0.0)}, "twice"),
        ({"token_types": (1,)}, "entries for"),
        ({"scores": ()}, "entries for"),
        ({"tokens": ("a" * 5000,), "token_types": (1,), "scores": (0.0,)}, "4096"),
    ],
)
def test_vocabularies_that_contradict_themselves(
    change: dict[str, Any], message: str, llama_vocabulary: GGUFVocabulary
) -> None:
    with pytest.raises(TokenizerError, match=message):
        build_tokenizer(dataclasses.replace(llama_vocabulary, **change), {})


@pytest.mark.parametrize("merge", ["", "a", "a ", " a", "qqq zzz", "a b c"])
def test_merges_must_join_known_tokens(merge: str, smol_vocabulary: GGUFVocabulary) -> None:
    with pytest.raises(TokenizerError, match="merges"):
        build_tokenizer(dataclasses.replace(smol_vocabulary, merges=(merge,)), {})


def test_the_directory_source_is_no_gguf(smollm2: Path) -> None:
    source = dataclasses.replace(directory_source(smollm2), kind="gguf")
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer(source)
