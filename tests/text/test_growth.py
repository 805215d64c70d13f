"""What a ``tokenizer.json`` may make of a text is bounded before the library acts on it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from tests.text.test_tokenizer import small_backend, write
from tinyllm.errors import InvalidRequestError, TokenizerError
from tinyllm.text.growth import MAX_OBJECTS, MAX_TEXT_BYTES, check_tokenizer_json, text_growth
from tinyllm.text.tokenizer import load_tokenizer

TEXT = {"Sequence": {"id": "A", "type_id": 0}}
BOS = {"SpecialToken": {"id": "<s>", "type_id": 0}}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def template(single: list[Any], ids: int = 1) -> dict[str, Any]:
    special = {"<s>": {"id": "<s>", "ids": [256] * ids, "tokens": ["<s>"] * ids}}
    return {"type": "TemplateProcessing", "single": single, "pair": [TEXT, TEXT], "special_tokens": special}


def charsmap(content: str) -> str:
    return base64.b64encode((8).to_bytes(4, "little") + bytes(8) + content.encode() + b"\0").decode()


BOMBS: dict[str, dict[str, Any]] = {
    "chained replacements": {"normalizer": {"type": "Sequence", "normalizers": [replace("a", "a" * 16)] * 8}},
    "a replacement of nothing": {"normalizer": replace("", "a" * 2000, "Regex")},
    "a long prefix": {"normalizer": {"type": "Prepend", "prepend": "q" * (2 << 20)}},
    "a prefix, replaced": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": "a" * 4000}, *[replace("a", "a" * 900)] * 2],
        }
    },
    "bytes of bytes": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}] * 30,
        }
    },
    "a character map": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap("x" * 5000)}},
    "many special tokens": {"post_processor": template([BOS] * 1000 + [TEXT], ids=1000)},
    "the text, many times": {"post_processor": template([TEXT] * 1000)},
    "templates in a chain": {
        "post_processor": {"type": "Sequence", "processors": [template([TEXT, TEXT])] * 30}
    },
    "a decoder": {"decoder": {"type": "Sequence", "decoders": [replace("a", "aa")] * 40}},
    "a rule without a type": {"normalizer": {"pattern": {"String": "a"}, "content": "aa"}},
    "a long pattern": {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a" * 9000}}},
}


def with_rules(**rules: Any) -> bytes:
    return json.dumps(json.loads(small_backend().to_str()) | rules).encode()


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("model_first", [False, True])
def test_a_bomb_is_refused_before_it_is_loaded(name: str, model_first: bool) -> None:
    fields = json.loads(with_rules(**BOMBS[name]))
    if model_first:
        fields = {"model": fields.pop("model")} | fields
    with pytest.raises(TokenizerError):
        check_tokenizer_json(json.dumps(fields).encode())


def test_a_bomb_may_hide_behind_its_spelling() -> None:
    bomb = with_rules(**BOMBS["chained replacements"])
    with pytest.raises(TokenizerError):
        check_tokenizer_json(bomb.replace(b'"normalizer"', rb'"\u006eormalizer"'))
    with pytest.raises(TokenizerError, match="twice"):
        check_tokenizer_json(bomb[:-1] + rb', "n\u006frmalizer": null}')


def test_added_tokens_are_counted_and_measured() -> None:
    token = {"id": 300, "content": "a" * 4000, "special": False, "normalized": True}
    token |= dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    with pytest.raises(TokenizerError, match="added tokens"):
        check_tokenizer_json(with_rules(added_tokens=[token] * 40, normalizer=replace("a", "a" * 900)))
    check_tokenizer_json(with_rules(added_tokens=[token] * 40))
    many = b"[" + b"{}," * MAX_OBJECTS + b"{}]"
    with pytest.raises(TokenizerError, match="objects"):
        check_tokenizer_json(b'{"added_tokens":%s}' % many)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"a', b'{"a":', b'{"a":[', b'{"a":["', b'{"a":1', b"{,}"]
)
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError):
        check_tokenizer_json(data)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(TokenizerError):
        check_tokenizer_json(b'{"model":' + b"[" * 1_000_000)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(
    value=json_values,
    added=st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=2),
    indent=st.sampled_from([None, 2]),
)
@settings(max_examples=60)
def test_the_model_is_passed_over_whatever_it_is(value: Any, added: Any, indent: int | None) -> None:
    fields = {"model": value, "version": "1.0", "added_tokens": added, "normalizer": replace("a", "a" * 2000)}
    with pytest.raises(TokenizerError, match="unreasonably long"):
        check_tokenizer_json(json.dumps(fields, indent=indent).encode())
    fields["normalizer"] = None
    check_tokenizer_json(json.dumps(fields, indent=indent).encode())


STEPS = [
    normalizers.Replace("a", "bca"),
    normalizers.Replace(Regex("[ab]"), "é中"),
    normalizers.Prepend("▁a"),
    normalizers.NFKD(),
    normalizers.NFC(),
    normalizers.Lowercase(),
    normalizers.BertNormalizer(),
    normalizers.ByteLevel(),
    pre_tokenizers.Split(Regex("."), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=True),
    pre_tokenizers.Metaspace(),
]


@given(
    steps=st.lists(st.sampled_from(range(len(STEPS))), min_size=1, max_size=4),
    text=st.text("ab \ufdfa\u0130é中🫠", max_size=12),
)
@settings(max_examples=150)
def test_no_text_grows_beyond_what_was_foreseen(steps: list[int], text: str) -> None:
    backend = Tokenizer(models.BPE())
    chosen = [STEPS[step] for step in steps]
    before = [step for step in chosen if isinstance(step, normalizers.Normalizer)]
    after = [step for step in chosen if not isinstance(step, normalizers.Normalizer)]
    backend.normalizer = normalizers.Sequence(before)
    backend.pre_tokenizer = pre_tokenizers.Sequence(after)
    rules = json.loads(backend.to_str())
    try:
        growth = text_growth(rules["normalizer"], rules["pre_tokenizer"])
    except TokenizerError:
        return
    normal = backend.normalizer.normalize_str(text)
    pieces = backend.pre_tokenizer.pre_tokenize_str(normal)
    assert sum(len(piece.encode()) for piece, _ in pieces) <= growth.of(len(text.encode()))


def test_a_text_that_would_become_too_long_is_refused(tmp_path: Path) -> None:
    backend = small_backend()
    backend.normalizer = normalizers.Replace("a", "a" * 500)
    tokenizer = load_tokenizer(write(tmp_path, backend))
    assert len(tokenizer.encode("ab")) == 501
    with pytest.raises(InvalidRequestError, match="too long for this tokenizer"):
        tokenizer.encode("b" * (MAX_TEXT_BYTES // 500))


def test_a_token_of_absurd_length_is_refused(tmp_path: Path) -> None:
    backend = small_backend()
    backend.add_tokens([AddedToken("x" * 5000, normalized=False)])
    with pytest.raises(TokenizerError, match="a token of over"):
        load_tokenizer(write(tmp_path, backend))


def test_a_suffix_of_absurd_length_is_refused(tmp_path: Path) -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], end_of_word_suffix="x" * 5000))
    with pytest.raises(TokenizerError, match="end_of_word_suffix"):
        load_tokenizer(write(tmp_path, backend))
