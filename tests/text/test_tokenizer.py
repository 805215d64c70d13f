"""`Tokenizer`: the same ids and text as transformers, and typed errors for everything that is wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from tests.limits import refused_within_limits
from tests.text.conftest import directory_source, reference_tokenizer
from tests.text.strings import STRINGS
from tinyllm.artifacts.model import ModelArtifacts, TokenizerSource
from tinyllm.errors import InvalidRequestError, TokenizerError, UnsupportedModelError
from tinyllm.text.decoders import byte_of_character
from tinyllm.text.tokenizer import Tokenizer, eos_token_ids, load_tokenizer


def small_backend(*, adds_bos: bool = False) -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer without merges, and with special tokens ``<s>`` and ``</s>``."""
    vocabulary = {character: i for i, character in enumerate(byte_of_character())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair=None, special_tokens=[("<s>", 256)]
        )
    return backend


def write(directory: Path, backend: tokenizers.Tokenizer, **config: Any) -> TokenizerSource:
    """Write a tokenizer as an ordinary directory has it."""
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory_source(directory)


def test_there_are_enough_strings() -> None:
    assert len(STRINGS) >= 500


@pytest.mark.parametrize("name", ["smol", "llama3", "qwen2", "qwen3"])
def test_ids_and_texts_are_those_of_transformers(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer, reference = request.getfixturevalue(name), request.getfixturevalue(f"{name}_reference")
    for text in STRINGS:
        ids = tokenizer.encode(text)
        assert ids == reference(text)["input_ids"], text
        assert tokenizer.encode_chat(text) == reference(text, add_special_tokens=False)["input_ids"], text
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("post_processor", [None, "template", "byte level"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_eos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": True, "bos_token": None},
        {"bos_token": {"content": "<s>", "__type": "AddedToken", "lstrip": False, "normalized": False}},
        {"pad_token": "<pad>", "additional_special_tokens": ["<extra>"]},
        {"added_tokens_decoder": {"256": {"content": "<s>", "special": True, "rstrip": True}}},
        {"added_tokens_decoder": {"258": {"content": "<new>", "special": False, "normalized": True}}},
        {"split_special_tokens": True},
    ],
    ids=str,
)
def test_special_tokens_are_those_of_transformers(
    config: dict[str, Any], post_processor: str | None, tmp_path: Path
) -> None:
    backend = small_backend()
    if post_processor == "template":
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair=None, special_tokens=[("<s>", 256), ("</s>", 257)]
        )
    elif post_processor == "byte level":
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer = load_tokenizer(
        write(tmp_path, backend, **({"bos_token": "<s>", "eos_token": "</s>"} | config))
    )
    reference = reference_tokenizer(tmp_path)
    for text in ["", "hi", "a<s>  b</s> c", "x <pad> <extra><new>é"]:
        for special in (True, False):
            expected = reference(text, add_special_tokens=special)["input_ids"]
            assert tokenizer.encode(text, add_special_tokens=special) == expected
    assert tokenizer.special_tokens == reference.special_tokens_map
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (
        reference.bos_token_id,
        reference.eos_token_id,
    )
    assert tokenizer.vocab_size == len(reference)


def test_truncation_and_padding_in_the_file_do_not_apply(tmp_path: Path) -> None:
    backend = small_backend()
    backend.enable_truncation(max_length=3)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(write(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("longer than three")) == "longer than three"


@pytest.mark.parametrize("template_prints_bos", [True, False])
def test_exactly_one_bos(template_prints_bos: bool, tmp_path: Path) -> None:
    """D35: whoever puts it there, there is one, and twice only if the text itself says so."""
    tokenizer = load_tokenizer(write(tmp_path, small_backend(adds_bos=True), bos_token="<s>"))
    text = "<s>hi" if template_prints_bos else "hi"
    assert tokenizer.encode(text).count(256) == 1
    assert tokenizer.encode(text)[0] == 256
    assert tokenizer.encode_chat("<s>hi") == tokenizer.encode("<s>hi") == tokenizer.encode("hi")
    assert tokenizer.encode("<s><s>hi").count(256) == 2


def test_a_text_that_begins_with_bos_keeps_it_where_none_is_added(smol: Tokenizer) -> None:
    assert smol.encode("<|im_start|><|im_start|>")[:2] == [1, 1]


@pytest.mark.parametrize("text", ["\ud800", "ok\udfff", "\ud83e\udd99 as two halves"])
def test_lone_surrogates_are_refused(text: str, smol: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        smol.encode(text)


def test_only_strings_are_text(smol: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="must be a string, not bytes"):
        smol.encode(cast("str", b"bytes"))


@pytest.mark.parametrize("token_id", [-1, 2**32, 1.0, "1", True, None])
def test_what_is_no_token_id_is_refused(token_id: object, smol: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="not a token id"):
        smol.decode([cast("int", token_id)])


def test_ids_without_a_token_have_no_text(smol: Tokenizer) -> None:
    assert smol.decode([smol.vocab_size, 2**32 - 1]) == ""
    assert smol.token_bytes(smol.vocab_size) == smol.token_bytes(-1) == b""


class Panic(BaseException):
    """Stands in for pyo3's exception of this name, which cannot be imported."""


Panic.__name__ = "PanicException"


class PanickingBackend:
    """A backend whose every use panics."""

    def encode(self, *_: object, **__: object) -> None:
        raise Panic

    decode = encode


def test_rust_panics_become_errors_of_the_request(smol: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smol, "_backend", PanickingBackend())
    with pytest.raises(InvalidRequestError, match="panicked"):
        smol.encode("x")
    with pytest.raises(InvalidRequestError, match="panicked"):
        smol.decode([1])


def test_interrupts_are_not_swallowed(smol: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def encode(self, *_: object, **__: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(smol, "_backend", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        smol.encode("x")


@pytest.mark.parametrize("name", ["smol", "qwen3", "llama"])
def test_token_bytes_add_up_to_the_text(name: str, request: pytest.FixtureRequest) -> None:
    """D08: the bytes of each token are exact, also where a character lies in several tokens."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    for text in ["🦙 ď 漢 hello", "a<|im_end|>b", "\x00\x7f \n"]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        assert joined.decode().removeprefix(" " if name == "llama" else "") == text
    assert "\ufffd" in "".join(tokenizer.token(i) for i in tokenizer.encode("🪿"))


def test_special_tokens_are_their_own_text(qwen3: Tokenizer) -> None:
    end = qwen3.encode("<|im_end|>")[0]
    assert (qwen3.token(end), qwen3.token_bytes(end)) == ("<|im_end|>", b"<|im_end|>")
    assert end in qwen3.special_token_ids
    assert qwen3.encode("<think>")[0] not in qwen3.special_token_ids


def test_sizes_and_ids_of_the_checkpoints(smol: Tokenizer, qwen3: Tokenizer) -> None:
    assert (smol.vocab_size, smol.bos_token_id, smol.eos_token_id) == (49152, 1, 2)
    assert (qwen3.vocab_size, qwen3.bos_token_id, qwen3.eos_token_id) == (151669, None, 151645)


@dataclass
class Ends:
    """The one field of `ModelArtifacts` that is read."""

    eos_token_ids: tuple[int, ...]


def test_eos_is_the_union_of_all_sources(smol: Tokenizer) -> None:
    """D16, D17."""
    artifacts = cast("ModelArtifacts", Ends((0, 7)))
    assert eos_token_ids(artifacts, smol) == {0, 7, 2}
    assert eos_token_ids(artifacts, None) == {0, 7}
    assert eos_token_ids(cast("ModelArtifacts", Ends(())), smol) == {2}


def test_a_saved_tokenizer_is_the_same_here_and_in_transformers(llama: Tokenizer, tmp_path: Path) -> None:
    llama.save(tmp_path)
    again, reference = load_tokenizer(directory_source(tmp_path)), reference_tokenizer(tmp_path)
    for text in ["hello world", " x", "", "é漢🦙", "<s>hello"]:
        assert again.encode(text) == llama.encode(text)
        assert reference(text, add_special_tokens=False)["input_ids"] == llama.encode_chat(text)
    assert reference("hello")["input_ids"] == llama.encode("hello")
    assert again.special_tokens == reference.special_tokens_map == llama.special_tokens


HOSTILE: Mapping[str, bytes] = {
    "empty": b"",
    "not JSON": b"\x80\x02}q\x00.",
    "not an object": b"[]",
    "deep": b"[" * 100_000,
    "no model": b"{}",
    "unknown model": b'{"version": "1.0", "model": {"type": "Magic"}}',
    "merges of nothing": b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["b", "c"]]}}',
    "negative id": b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "huge id": b'{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}',
    "bad regex": b'{"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": {"type": "Split", '
    b'"pattern": {"Regex": "((("}, "behavior": "Isolated", "invert": false}}',
    "version": b'{"version": "9", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
    "charsmap": b'{"model": {"type": "BPE", "vocab": {}, "merges": []}, "normalizer": {"type": "Precompiled",'
    b'"precompiled_charsmap": "/////w=="}}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_give_typed_errors(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(HOSTILE[name])
    source = TokenizerSource("tokenizer.json", path)
    error = refused_within_limits(lambda: load_tokenizer(source), TokenizerError)
    assert str(tmp_path) not in str(error)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="missing"):
        load_tokenizer(TokenizerSource("tokenizer.json", tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    "config",
    [
        {"bos_token": 5},
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": [1]},
        {"added_tokens_decoder": {"1": {"content": ["a"]}}},
        {"additional_special_tokens": 3},
        {"add_bos_token": True, "bos_token": {"content": {}}},
    ],
    ids=str,
)
def test_damaged_configs_give_typed_errors(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TokenizerError):
        load_tokenizer(write(tmp_path, small_backend(), **config))


def test_decoders_of_other_kinds_of_model_are_refused_by_name(tmp_path: Path) -> None:
    backend = small_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        load_tokenizer(write(tmp_path, backend))


def test_long_texts_take_time_in_proportion(smol: Tokenizer) -> None:
    """A text 16 times as long may not take 16 x 16 times as long (both ordinary text and one long word)."""
    for unit in ("The quick brown fox. ", "a"):
        short, long = unit * (8000 // len(unit)), unit * (128_000 // len(unit))
        times = []
        for text in (short, long):
            best = float("inf")
            for _ in range(3):
                began = time.perf_counter()
                smol.encode(text)
                best = min(best, time.perf_counter() - began)
            times.append(best)
        assert times[1] < 100 * times[0] + 0.2


def test_added_tokens_with_foreign_characters_decode_as_the_library_does(tmp_path: Path) -> None:
    backend = small_backend()
    backend.add_tokens([AddedToken("漢 字", normalized=False), AddedToken("Ġé", normalized=False)])
    tokenizer = load_tokenizer(write(tmp_path, backend))
    for text in ("漢 字", "Ġé"):
        [token_id] = tokenizer.encode(text)
        assert tokenizer.token(token_id) == tokenizer.decode([token_id])
