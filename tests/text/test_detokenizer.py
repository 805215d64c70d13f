"""`IncrementalDetokenizer`: the pieces are exactly the whole, no character is broken, nothing is late."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from tests.text.strings import STRINGS
from tinyllm.text.decoders import byte_of_character, plan_decoder
from tinyllm.text.detokenizer import IncrementalDetokenizer
from tinyllm.text.tokenizer import Tokenizer

TOKENS = ["▁", "▁▁", "▁hello", "a", "b▁c", "é", "漢", "##x", "<0x41>", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>"]
TOKENS += [
    "<0xF0>",
    "<0x9F>",
    "<0xA6>",
    "<0x99>",
    "<0xED>",
    "<0xA0>",
    "<0xC0>",
    "<0xZZ>",
    " ",
    "  x",
    "\ufffd",
]

DECODERS: dict[str, list[Any]] = {
    "llama": [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ],
    "strips two": [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)],
    "strips each": [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)],
    "gemma": [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()],
    "bytes last": [decoders.Replace("▁", " "), decoders.ByteFallback()],
    "metaspace": [decoders.Metaspace()],
    "metaspace never": [decoders.Metaspace(prepend_scheme="never")],
    "bytes, metaspace": [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")],
    "fused metaspace": [decoders.Fuse(), decoders.Metaspace()],
    "longer pattern": [decoders.Replace("##", "_"), decoders.Fuse(), decoders.Replace("_", "-")],
    "byte level": [decoders.ByteLevel()],
    "fuse": [decoders.Fuse()],
    "none": [],
}


def small(name: str) -> Tokenizer:
    """Return a tokenizer of odd tokens with this decoder; its last token is special."""
    backend = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(TOKENS)}, merges=[]))
    backend.add_special_tokens(["</s>"])
    steps = DECODERS[name]
    if steps:
        backend.decoder = steps[0] if len(steps) == 1 else decoders.Sequence(steps)
    return Tokenizer(backend, {"eos_token": "</s>"})


SMALL = {name: small(name) for name in DECODERS}


def byte_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer whose ids are the bytes."""
    ids = byte_of_character()
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})


BYTES = byte_tokenizer()


def stream(tokenizer: Tokenizer, ids: Sequence[int], *, skip_special_tokens: bool = True) -> list[str]:
    """Return the pieces that pushes and the flush give."""
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


def assert_streams_exactly(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    for skip in (True, False):
        pieces = stream(tokenizer, ids, skip_special_tokens=skip)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=150)
@given(ids=st.lists(st.integers(0, len(TOKENS) + 2), max_size=12))
def test_pieces_are_the_whole_for_every_decoder(name: str, ids: list[int]) -> None:
    assert_streams_exactly(SMALL[name], ids)


@settings(max_examples=300)
@given(data=st.binary(max_size=12))
def test_invalid_bytes_are_grouped_as_the_library_does(data: bytes) -> None:
    assert_streams_exactly(BYTES, list(data))


def test_every_short_run_of_the_critical_bytes() -> None:
    """Runs of bytes at the edges of UTF-8's rules, to the longest sequence there is."""
    edges = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF]
    for size in (1, 2, 3):
        for run in itertools.product(edges, repeat=size):
            assert_streams_exactly(BYTES, run)
    for last in itertools.product(edges, repeat=2):
        assert_streams_exactly(BYTES, [0xF0, 0x90, *last])


@pytest.mark.parametrize("name", ["smol", "qwen3", "llama"])
def test_pieces_are_the_whole_for_real_vocabularies(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    rng = random.Random(1)
    for text in STRINGS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert_streams_exactly(tokenizer, ids)
        assert_streams_exactly(tokenizer, ids[rng.randrange(len(ids) + 1) :])
    for _ in range(500):
        size = rng.choice([300, tokenizer.vocab_size + 100])
        assert_streams_exactly(tokenizer, [rng.randrange(size) for _ in range(rng.randrange(20))])


@pytest.mark.parametrize("name", ["smol", "qwen3", "llama"])
@pytest.mark.parametrize("text", ["🦙", "ď", "漢", "a🦙b", "👨‍👩‍👧‍👦", "🇨🇿 ❤️", "نص", "é"])
def test_no_broken_character_is_ever_shown(name: str, text: str, request: pytest.FixtureRequest) -> None:
    """D01."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    pieces = stream(tokenizer, tokenizer.encode(text, add_special_tokens=False))
    assert "\ufffd" not in "".join(pieces)
    assert all(piece.isprintable() or "\u200d" in piece or "\ufe0f" in piece for piece in pieces)
    assert "".join(pieces) == text


def test_a_character_is_shown_with_its_last_byte() -> None:
    """Nothing is held back that is known: text comes with the token that completes it."""
    assert stream(BYTES, "aé漢🦙z".encode()) == ["a", "", "é", "", "", "漢", "", "", "", "🦙", "z", ""]
    assert stream(BYTES, b"\xe2\x82a") == ["", "", "\ufffda", ""]
    assert stream(BYTES, b"\xff\x80") == ["\ufffd", "\ufffd", ""]


@pytest.mark.parametrize("name", ["smol", "qwen3"])
def test_byte_level_text_comes_as_soon_as_its_bytes(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    for text in STRINGS[::7]:
        detokenizer, data, shown = IncrementalDetokenizer(tokenizer, skip_special_tokens=False), b"", ""
        for token_id in tokenizer.encode(text):
            data += tokenizer.token_bytes(token_id)
            shown += detokenizer.push(token_id)
            assert shown == data.decode(errors="ignore")


def test_byte_fallback_holds_a_run_only_while_it_may_be_text(llama: Tokenizer) -> None:
    """The library shows a run of byte tokens as text only if all of it is; so the run decides."""
    first = llama.encode_chat("\x00")[-1]
    ids = [first + byte for byte in "🦙".encode()] + llama.encode_chat("x")[-1:]
    assert stream(llama, ids) == ["", "", "", "", "🦙x" if llama.piece(ids[-1]) == "x" else "🦙 x", ""]
    broken = [first + byte for byte in b"\xe2\x82\x41\x42"]
    assert stream(llama, broken) == ["", "", "\ufffd" * 3, "\ufffd", ""]


@pytest.mark.parametrize("name", ["smol", "llama"])
def test_an_end_inside_a_character_shows_once(name: str, request: pytest.FixtureRequest) -> None:
    """D03: with byte-level BPE half a character is one U+FFFD, and only at the end."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode("ok 🦙", add_special_tokens=False)[:-1]
    *pieces, last = stream(tokenizer, ids)
    assert "".join(pieces).strip() == "ok"
    assert set(last) == {"\ufffd"}
    assert len(last) == (1 if name == "smol" else 3)
    assert "".join([*pieces, last]) == tokenizer.decode(ids)


def test_leading_spaces(smol: Tokenizer, llama: Tokenizer) -> None:
    """D04: byte-level BPE keeps a leading space, SentencePiece strips exactly one."""
    assert "".join(stream(smol, smol.encode(" leading"))) == " leading"
    pieces = {llama.piece(i): i for i in range(llama.vocab_size)}
    ids = [pieces["▁"], pieces["▁leading"], pieces["▁x"]]
    assert "".join(stream(llama, ids)) == " leading x" == llama.decode(ids)
    assert "".join(stream(llama, ids[1:])) == "leading x" == llama.decode(ids[1:])


def test_spaces_between_words_are_kept(llama: Tokenizer) -> None:
    """D05: tokens decoded one at a time must not lose the space in front of each."""
    ids = llama.encode("hello world hello", add_special_tokens=False)
    assert stream(llama, ids) == ["hello", " world", " hello", ""]


@pytest.mark.parametrize("name", ["smol", "llama"])
def test_special_tokens_are_skipped_or_shown(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(name)
    end = tokenizer.eos_token_id
    assert end is not None
    ids = [*tokenizer.encode("hello", add_special_tokens=False), end]
    assert stream(tokenizer, ids)[-2:] == ["", ""]
    assert "".join(stream(tokenizer, ids, skip_special_tokens=False)) == "hello" + tokenizer.token(end)


@pytest.mark.parametrize("name", ["smol", "llama"])
def test_each_token_costs_the_same(name: str, request: pytest.FixtureRequest) -> None:
    """D05: also in the middle of a long text, and in a run of bytes that never ends."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    byte = tokenizer.encode("\x01", add_special_tokens=False)[-1]
    for token_id in (tokenizer.encode("hello", add_special_tokens=False)[0], byte):
        times = []
        for count in (2_000, 32_000):
            began = time.perf_counter()
            stream(tokenizer, [token_id] * count)
            times.append(time.perf_counter() - began)
        assert times[1] < 80 * times[0] + 0.2


def test_the_librarys_own_stream_is_not_exact(llama: Tokenizer, tmp_path: Path) -> None:
    """Why there is a decoder of our own here: when this fails, look again whether the library's serves."""
    llama.save(tmp_path)
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    first = llama.encode_chat("\x00")[-1]
    ids = [first + byte for byte in b"\xe2\x82"]
    library = decoders.DecodeStream(skip_special_tokens=True)
    assert "".join(library.step(backend, i) or "" for i in ids) != backend.decode(ids)


def test_decoder_state_is_per_stream() -> None:
    plan = plan_decoder(decoders.Sequence(DECODERS["llama"]).__getstate__())
    first, second = plan.start(), plan.start()
    assert (first.push("▁a"), second.push("▁b"), first.push("▁c")) == ("a", "b", " c")
