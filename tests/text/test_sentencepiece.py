"""SentencePiece models against the sentencepiece library, and hostile files."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2 as proto

from tests.limits import refused_within_limits
from tinyllm.artifacts.model import TokenizerSource
from tinyllm.errors import TokenizerError, UnsupportedModelError
from tinyllm.text.sentencepiece import read_sentencepiece
from tinyllm.text.tokenizer import Tokenizer, load_tokenizer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "hello", "world", "naïve", "café"]
WORDS += ["straße", "привет", "мир", "你好", "世界", "１２３", "é"]


def texts(*pieces: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), max_size=14).map("".join)


TEXT = texts(*"abcdefghijklmnop   .,\n\téñ１が你好🙂\u200d▁", "the ", " quick", "ing")
PLAIN_TEXT = texts(*"abcdefghijklmnop   .,é1你好🙂Ａﬁ½\t", "the ", " quick", "ing")

KINDS = [(kind, byte_fallback) for kind in ("bpe", "unigram") for byte_fallback in (True, False)]


@functools.cache
def trained(**options: Any) -> bytes:
    """Train a small model on made-up sentences."""
    rng, out = random.Random(1), io.BytesIO()
    endings = ["", "s", "ed", "ing", ".", ","]
    sentences = [
        " ".join(rng.choice(WORDS) + rng.choice(endings) for _ in range(rng.randrange(1, 12)))
        for _ in range(1000)
    ]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=out,
        vocab_size=500,
        hard_vocab_limit=False,
        character_coverage=0.99,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return out.getvalue()


def loaded(data: bytes, **config: Any) -> Tokenizer:
    backend, named = read_sentencepiece(data, config)
    return Tokenizer(backend, {k: v for k, v in named.items() if isinstance(v, str)})


@functools.cache
def pair(**options: Any) -> tuple[Tokenizer, Any]:
    """Return a trained model, read here and by the library."""
    data = trained(**options)
    return loaded(data), sentencepiece.SentencePieceProcessor(model_proto=data)


def assert_equal(options: dict[str, Any], text: str) -> None:
    tokenizer, reference = pair(**options)
    ids = reference.encode(text)
    assert tokenizer.encode_chat(text) == ids
    # A literal space mark is decoded differently where extra spaces are removed: it is no space there.
    if reference.unk_id() not in ids and not ("▁" in text and options.get("remove_extra_whitespaces", True)):
        assert tokenizer.decode(ids) == reference.decode(ids)


@pytest.mark.parametrize("dummy_prefix", [True, False])
@pytest.mark.parametrize("remove_spaces", [True, False])
@pytest.mark.parametrize(("kind", "byte_fallback"), KINDS)
@settings(max_examples=60)
@given(text=TEXT)
def test_identity_normalisation(
    kind: str, byte_fallback: bool, remove_spaces: bool, dummy_prefix: bool, text: str
) -> None:
    options = {
        "model_type": kind,
        "byte_fallback": byte_fallback,
        "add_dummy_prefix": dummy_prefix,
        "remove_extra_whitespaces": remove_spaces,
        "normalization_rule_name": "identity",
    }
    assert_equal(options, text)


@pytest.mark.parametrize(("kind", "byte_fallback"), KINDS)
@settings(max_examples=60)
@given(text=PLAIN_TEXT)
def test_nmt_nfkc_normalisation(kind: str, byte_fallback: bool, text: str) -> None:
    """Without combining marks, where the tokenizers library's character map is not SentencePiece's."""
    options = {"model_type": kind, "byte_fallback": byte_fallback, "normalization_rule_name": "nmt_nfkc"}
    assert_equal(options, text)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_user_defined_symbols_are_tokens_of_their_own(kind: str) -> None:
    data = trained(
        model_type=kind,
        user_defined_symbols="<sep>",
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
    )
    tokenizer, reference = loaded(data), sentencepiece.SentencePieceProcessor(model_proto=data)
    for text in ["a<sep>b", "<sep>", "the <sep> quick<sep>"]:
        assert tokenizer.encode_chat(text) == reference.encode(text)
        assert tokenizer.decode(reference.encode(text)) == reference.decode(reference.encode(text))


def test_special_tokens_and_bos(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(trained(model_type="bpe", byte_fallback=True, normalization_rule_name="identity"))
    tokenizer = load_tokenizer(TokenizerSource("sentencepiece", path))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.piece(0)) == (1, 2, "<unk>")
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("<s>the</s>") == [1, *tokenizer.encode_chat("the"), 2]
    both = load_tokenizer(
        TokenizerSource("sentencepiece", path, {"add_bos_token": False, "add_eos_token": True})
    )
    assert both.encode("the") == [*tokenizer.encode_chat("the"), 2]


def test_legacy_is_as_in_transformers(tmp_path: Path) -> None:
    """Where the space in front goes after a special token; transformers' generic class is the reference."""
    from transformers import AutoTokenizer

    path = tmp_path / "tokenizer.model"
    path.write_bytes(
        trained(
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
        )
    )
    config = {"tokenizer_class": "LlamaTokenizer", "legacy": False, "add_bos_token": True, "bos_token": "<s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    reference = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(TokenizerSource("sentencepiece", path, config))
    for text in ["the quick", "<s>the quick", " the", "the</s>the", "", "é🙂"]:
        assert tokenizer.encode_chat(text) == reference(text, add_special_tokens=False)["input_ids"], text
    assert tokenizer.encode("the") == reference("the")["input_ids"]
    legacy = load_tokenizer(TokenizerSource("sentencepiece", path, config | {"legacy": True}))
    assert legacy.encode_chat("</s>the") == [2, *legacy.encode_chat("the")]


def message(**fields: Any) -> proto.ModelProto:
    """Return a well-formed tiny model, changed."""
    model = proto.ModelProto()
    model.trainer_spec.model_type = fields.pop("model_type", 2)
    for piece, kind in [("<unk>", 2), ("<s>", 3), ("</s>", 3), ("a", 1), ("b", 1), ("ab", 1)]:
        model.pieces.add(piece=piece, type=kind, score=-1.0)
    for name, value in fields.items():
        setattr(model.trainer_spec, name, value)
    return model


def hostile() -> Iterator[tuple[str, bytes]]:
    good = message().SerializeToString()
    yield "empty", b""
    yield "text", b"hello world"
    yield "zeros", b"\0" * 1000
    yield "endless number", b"\xff" * 1000
    yield "length beyond the end", b"\x0a\xff\xff\xff\xff\x0f"
    yield "groups", b"\x0b\x0c"
    yield "cut in a number", good[:-1] + b"\x80"
    yield "not UTF-8", b"\x0a\x03\x0a\x01\xff"
    model = message()
    model.pieces[4].score = float("nan")
    yield "score that is no number", model.SerializeToString()
    model = message()
    model.pieces[4].piece = "a"
    yield "piece twice", model.SerializeToString()
    model = message()
    model.pieces[4].piece = ""
    yield "empty piece", model.SerializeToString()
    model = message()
    model.pieces[4].piece = "x" * 2000
    yield "long piece", model.SerializeToString()
    model = message()
    model.pieces[0].type = 1
    yield "no unknown piece", model.SerializeToString()
    model = message()
    model.normalizer_spec.precompiled_charsmap = b"\xff\xff\xff\xff" * 10
    yield "damaged character map", model.SerializeToString()
    model = message()
    for i in range(5000):
        model.pieces.add(piece=f"{i:05}" + "y" * 1000, score=-1.0)
    yield "too much to split", model.SerializeToString()


HOSTILE = dict(hostile())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_give_typed_errors(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(HOSTILE[name])
    refused_within_limits(lambda: load_tokenizer(TokenizerSource("sentencepiece", path)), TokenizerError)


def test_there_is_an_end_to_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyllm.text.sentencepiece.MAX_PIECES", 100)
    with pytest.raises(TokenizerError, match="more than 100 pieces"):
        read_sentencepiece(b"\x0a\x03\x0a\x01a" * 101, {})


@settings(max_examples=200)
@given(data=st.data())
def test_damage_anywhere_gives_typed_errors_or_a_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    good = bytearray(message().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged.model"
    path.write_bytes(good)
    with contextlib.suppress(TokenizerError, UnsupportedModelError):
        load_tokenizer(TokenizerSource("sentencepiece", path)).encode("ab")


@pytest.mark.parametrize(
    "change", [{"model_type": 3}, {"model_type": 4}, {"treat_whitespace_as_suffix": True}]
)
def test_other_kinds_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError):
        read_sentencepiece(message(**change).SerializeToString(), {})


def test_fields_are_read_whatever_their_order_and_unknown_ones_skipped() -> None:
    tail = b"\xa2\x06\x03abc" + b"\xa5\x06" + struct.pack("<f", 1.0) + b"\xa1\x06" + b"\0" * 8
    pieces, rest = message(), message()
    pieces.ClearField("trainer_spec")
    rest.ClearField("pieces")
    data = tail + rest.SerializeToString() + pieces.SerializeToString()
    tokenizer = loaded(data)
    assert tokenizer.encode_chat("ab") == loaded(message().SerializeToString()).encode_chat("ab")


def test_large_vocabularies_load_quickly() -> None:
    model = message()
    for i in range(32_000):
        model.pieces.add(piece=f"▁{i:05}", score=-float(i))
    data = model.SerializeToString()
    began = time.thread_time()
    loaded(data)
    assert time.thread_time() - began < 2
