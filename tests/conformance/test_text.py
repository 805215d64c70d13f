"""Section D1 of shared/design/conformance.md: text out of tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models

from tests.conformance.support import (
    PROMPT,
    SMALL,
    decode,
    encode,
    fake_engine,
    forced,
    gives,
    ids_in,
    read,
    sampling,
    text_of,
)
from tests.fakes import EOS, fake_tokenizer, ids_of, says
from tinyllm import AsyncEngine, Engine, FinishReason, SamplingParams
from tinyllm.text.tokenizer import Tokenizer

SPLIT = "🦙 ď 漢字 👩‍👩‍👧 e\u0301 \u202e🏳️‍🌈ﷺ!"
"""Characters whose bytes lie in several tokens."""


def sentencepiece_tokenizer(kind: type[Tokenizer] = Tokenizer) -> Tokenizer:
    """Return a tokenizer whose decoder is that of SentencePiece models: it strips one leading space."""
    words = ["<unk>", "▁", "▁leading", "▁x", "▁the", "▁cat", "▁sat", "on", "▁▁", *"abc"]
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {token: place for place, token in enumerate([*words, *raw])}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return kind(backend, {})


def pieces_to_ids(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    ids = {tokenizer.piece(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    return [ids[token] for token in tokens]


@pytest.mark.anyio
async def test_d01_characters_split_over_tokens() -> None:
    """Bytes of a character in 2-4 tokens, streamed: no U+FFFD, no surrogate, joined deltas are the text."""
    async with fake_engine(says(SPLIT)) as engine:
        pieces = await read(engine.generate("x", SamplingParams(max_tokens=500)))
    assert text_of(pieces) == SPLIT
    assert max(len(piece.token_ids) for piece in pieces) == 1
    for piece in pieces:
        assert "\ufffd" not in piece.text
        piece.text.encode()  # a surrogate has no bytes


def test_d01_on_real_vocabularies(tiny: Engine) -> None:
    """The same with the tokens that real vocabularies split these characters into."""
    ids = encode(tiny, SPLIT)
    assert any("\ufffd" in decode(tiny, [token_id]) for token_id in ids)
    result = tiny.generate(PROMPT, forced(ids))
    assert list(result.token_ids) == ids
    assert result.text == decode(tiny, ids)


@pytest.mark.parametrize("text", ["漢🦙", "aé", "🦙"])
def test_d03_max_tokens_inside_a_character(tiny: Engine, text: str) -> None:
    """The length limit falls inside a character: at most one U+FFFD, at the end; exact usage; no hang."""
    ids = encode(tiny, text)
    for length in range(1, len(ids) + 1):
        result = tiny.generate(PROMPT, forced(ids, max_tokens=length))
        assert result.finish_reason is FinishReason.LENGTH
        assert result.usage.completion_tokens == length
        assert "\ufffd" not in result.text[:-1]
        assert result.text == decode(tiny, ids[:length])


@pytest.mark.anyio
async def test_d03_with_a_stop_string_that_waits() -> None:
    """A limit inside a character, behind text held back for a stop string: both come, in order."""
    async with fake_engine(says("ab🦙")) as engine:
        result = await engine.generate("x", sampling(max_tokens=4, stop=["b🦙"]))
    assert (result.text, result.finish_reason) == ("ab\ufffd", FinishReason.LENGTH)
    assert result.usage.completion_tokens == 4


def test_d04_byte_level_keeps_a_leading_space(tiny: Engine) -> None:
    """Byte-level BPE text that begins with spaces keeps them."""
    for text in (" leading x", "  two", "\n x"):
        assert tiny.generate(PROMPT, forced(encode(tiny, text))).text == text


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["▁", "▁leading", "▁x"], " leading x"),
        (["▁leading", "▁x"], "leading x"),
        (["▁▁", "▁x"], "  x"),
        (["a", "▁x"], "a x"),
    ],
)
async def test_d04_sentencepiece_strips_exactly_one(tokens: list[str], text: str) -> None:
    """SentencePiece tokens: exactly one leading space goes, and the stream is the full decode."""
    tokenizer = sentencepiece_tokenizer()
    ids = pieces_to_ids(tokenizer, *tokens)
    async with fake_engine(gives(ids, 0), tokenizer=tokenizer) as engine:
        pieces = await read(engine.generate([1], SamplingParams(max_tokens=len(ids))))
    assert text_of(pieces) == text == tokenizer.decode(ids)


class Counting(Tokenizer):
    """Counts what the engine asks of its tokenizer while it streams."""

    pieces = 0
    decodes = 0

    def piece(self, token_id: int) -> str | None:
        Counting.pieces += 1
        return super().piece(token_id)

    def decode(self, *args: object, **options: object) -> str:
        Counting.decodes += 1
        raise AssertionError("a stream is never decoded anew")


@pytest.mark.anyio
async def test_d05_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens one at a time with a Strip/Fuse decoder: spaces between words stay, one look-up for each."""
    monkeypatch.setattr(Counting, "pieces", 0)
    tokenizer = sentencepiece_tokenizer(Counting)
    ids = pieces_to_ids(sentencepiece_tokenizer(), "▁the", "▁cat", "▁sat") * 200
    async with fake_engine(gives(ids, 0), tokenizer=tokenizer) as engine:
        pieces = await read(engine.generate([1], SamplingParams(max_tokens=len(ids))))
    assert text_of(pieces) == " ".join(["the cat sat"] * 200)
    assert (Counting.pieces, Counting.decodes) == (len(ids), 0)


@pytest.mark.anyio
@pytest.mark.parametrize("buffer", [1, 8, 64])
async def test_d07_however_pieces_are_buffered(buffer: int) -> None:
    """A reader that takes many pieces at once, or one: the same text, no "thecat"."""
    tokenizer = sentencepiece_tokenizer()
    ids = pieces_to_ids(tokenizer, "▁the", "▁cat", "▁sat", "on", *(f"<0x{b:02X}>" for b in "🦙".encode()))
    async with fake_engine(gives(ids * 4, 0), tokenizer=tokenizer, stream_buffer_size=buffer) as engine:
        stream = engine.generate([1], SamplingParams(max_tokens=4 * len(ids)))
        await stream.wait()  # the buffer fills before the first is read
        pieces = await read(stream)
        whole = await engine.generate([1], SamplingParams(max_tokens=4 * len(ids)))
    assert text_of(pieces) == whole.text == "the cat saton🦙 the cat saton🦙 the cat saton🦙 the cat saton🦙"


def test_d08_bytes_of_each_token(tiny: Engine) -> None:
    """Log probabilities of byte fragments: exact bytes of each, which together are the text."""
    ids = encode(tiny, SPLIT)
    result = tiny.generate(PROMPT, forced(ids, logprobs=2))
    assert result.logprobs is not None
    assert [entry.token_id for entry in result.logprobs] == ids
    assert b"".join(entry.bytes for entry in result.logprobs).decode() == result.text
    for entry in result.logprobs:
        assert entry.token == entry.bytes.decode(errors="replace")
        assert len(entry.top) == 2


@pytest.mark.anyio
async def test_d08_text_that_is_held_back_has_its_logprobs() -> None:
    """Each token comes with its log probability at once, though its text waits for a stop string."""
    async with fake_engine(says("aé🦙")) as engine:
        params = sampling(max_tokens=20, logprobs=1, stop=["é🦙!"])
        pieces = await read(engine.generate("x", params))
    entries = [entry for piece in pieces for entry in piece.logprobs or ()]
    assert [entry.token_id for entry in entries] == ids_in(pieces) == [*ids_of("aé🦙"), EOS]
    assert b"".join(entry.bytes for entry in entries[:-1]).decode() == text_of(pieces) == "aé🦙"


@pytest.mark.anyio
async def test_d01_special_tokens_between_the_bytes_of_a_character() -> None:
    """A special token inside a character, which is skipped: the stream is still the full decode."""
    ids = [*ids_of("a"), *ids_of("é")[:1], EOS, *ids_of("é")[1:], *ids_of("b")]
    tokenizer = fake_tokenizer()
    async with fake_engine(gives(ids, 97)) as engine:
        for skip in (True, False):
            params = SamplingParams(max_tokens=len(ids), ignore_eos=True, skip_special_tokens=skip)
            pieces = await read(engine.generate("x", params))
            assert text_of(pieces) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.weights
@pytest.mark.anyio
async def test_d01_d04_on_a_real_model(smollm2: Path) -> None:
    """A real answer: what streams is what is decoded, and what awaiting gives."""
    async with AsyncEngine(model=str(smollm2), **SMALL) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=48)
        messages = [{"role": "user", "content": "Write three emoji and the word café."}]
        pieces = await read(engine.chat(messages, params))
        whole = await engine.chat(messages, params)
        assert text_of(pieces) == whole.text == decode(engine, ids_in(pieces))
