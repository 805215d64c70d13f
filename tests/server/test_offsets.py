"""``text_offset`` of completions, against its definition.

A token's offset is the number of characters of the choice's text that the tokens before it make, half ones
left out, and at most the text's length. So the parts of a character have its place; tokens that make no text
(special ones that are left out, or that the tokenizer put before a prompt) that of what follows; and what a
stop text cut off has the text's end. A streamed chunk has just the tokens whose text has begun.
"""

from __future__ import annotations

import asyncio
import codecs
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from tests.fakes import EOS, SECOND_EOS, FakeRunner, ids_of
from tests.server.harness import served
from tinyllm.artifacts.model import TokenizerSource
from tinyllm.core.request import Request
from tinyllm.server.completion_reply import Echo
from tinyllm.text.tokenizer import Tokenizer, load_tokenizer

PATH = "/v1/completions"
SPECIAL = {EOS: b"<eos>", SECOND_EOS: b"<end>"}


def known(ids: list[int], *, skip: bool) -> int:
    """Return how many characters tokens of single bytes make for certain, whatever follows."""
    parts = [b"" if skip and i in SPECIAL else SPECIAL.get(i, bytes([i % 256])) for i in ids]
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(parts)))


def expected(prompt: str | list[int], ids: list[int], text: str, *, skip: bool) -> list[int]:
    prompt_ids = ids_of(prompt) if isinstance(prompt, str) else prompt
    before = [known(prompt_ids[:place], skip=False) for place in range(len(prompt_ids))]
    start = len(prompt if isinstance(prompt, str) else bytes_of(prompt).decode(errors="replace"))
    places = before + [start + known(ids[:place], skip=skip) for place in range(len(ids))]
    return [min(place, len(text)) for place in places]


def bytes_of(ids: list[int]) -> bytes:
    return b"".join(SPECIAL.get(i, bytes([i % 256])) for i in ids)


async def ask(script: list[int], stream: bool, fields: dict[str, Any]) -> list[dict[str, Any]]:
    def follow(request: Request) -> int:
        place = request.num_output_tokens
        return script[place] if place < len(script) else 97

    async with served(runner=FakeRunner(follow)) as app:
        if stream:
            return [c for event in (await app.stream(PATH, **fields)).events for c in event["choices"]]
        return list((await app.post(PATH, **fields)).json["choices"])


LETTERS = "abcé漢🦙"
BYTES = st.sampled_from([*LETTERS.encode(), 0xFF, EOS, SECOND_EOS])
ANSWERS = st.lists(BYTES, min_size=1, max_size=12) | st.text(LETTERS, min_size=1, max_size=6).map(ids_of)


@settings(max_examples=60, deadline=None)
@given(
    prompt=st.text(LETTERS, min_size=1, max_size=5) | st.lists(BYTES, min_size=1, max_size=6),
    script=ANSWERS,
    stop=st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3),
    skip=st.booleans(),
)
@example(prompt="é", script=ids_of("abcb"), stop=["abca", "cb"], skip=True)
@example(prompt="a", script=ids_of("xabaz"), stop=["xabq", "abaz"], skip=True)  # two may still come
@example(prompt=[0xC3], script=[0xA9, EOS, 0x61, EOS, 0xF0, 0x9F], stop=[], skip=True)
@example(prompt=[EOS, 97], script=[0xC3, 0x61, SECOND_EOS], stop=["<end"], skip=False)
def test_offsets_are_as_defined(prompt: Any, script: list[int], stop: list[str], skip: bool) -> None:
    fields = {
        "prompt": prompt,
        "echo": True,
        "logprobs": 0,
        "max_tokens": len(script),
        "stop": stop or None,
        "ignore_eos": True,
        "skip_special_tokens": skip,
        "return_token_ids": True,
    }
    [whole] = asyncio.run(ask(script, False, fields))
    chunks = asyncio.run(ask(script, True, fields))
    logprobs, ids = whole["logprobs"], whole["token_ids"]
    assert ids == script[: len(ids)]
    assert logprobs["text_offset"] == expected(prompt, ids, whole["text"], skip=skip)
    # Together the chunks are the whole, and each token comes with the text that it begins.
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    for name, values in logprobs.items():
        assert [value for chunk in chunks for value in chunk["logprobs"][name]] == values
    sent = 0
    for chunk in chunks[:-1]:
        sent += len(chunk["text"])
        assert all(place < sent for place in chunk["logprobs"]["text_offset"])
    assert [i for chunk in chunks for i in chunk["token_ids"]] == ids


async def both(fields: dict[str, Any]) -> list[list[int]]:
    async with served(runner=FakeRunner(lambda request: 97 + request.num_output_tokens)) as app:
        whole = (await app.post(PATH, **fields)).json["choices"]
        chunks = [c for event in (await app.stream(PATH, **fields)).events for c in event["choices"]]
    offsets: list[list[int]] = []
    for choice in whole:
        mine = [c["logprobs"]["text_offset"] for c in chunks if c["index"] == choice["index"]]
        offsets.append(choice["logprobs"]["text_offset"])
        assert [place for part in mine for place in part] == offsets[-1]
    return offsets


def test_each_prompt_and_each_answer_has_its_own_offsets() -> None:
    fields = {"prompt": ["é", [97, 98, 99]], "n": 2, "max_tokens": 2, "logprobs": 0}
    assert asyncio.run(both({**fields, "echo": True})) == [[0, 0, 1, 2]] * 2 + [[0, 1, 2, 3, 4]] * 2
    assert asyncio.run(both(fields)) == [[0, 1]] * 4


def test_the_prompts_first_token_can_be_an_id_too() -> None:
    fields = {"prompt": "a", "echo": True, "logprobs": 0, "return_tokens_as_token_ids": True, "max_tokens": 0}
    [choice] = asyncio.run(ask([], False, fields))
    assert choice["logprobs"]["tokens"] == ["token_id:97"]


# Prompts of other tokenizers.


def sentencepiece() -> Tokenizer:
    """Return a tokenizer that puts BOS and a space before a text, and knows few words."""
    words = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "h", "i", "▁h", "▁hi", "hi"]
    merges = [("▁", "h"), ("▁h", "i"), ("h", "i")]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(backend, {"bos_token": "<s>"})


@pytest.fixture(scope="module")
def tokenizer_of(smollm2: Path, tiny_qwen3: Path) -> dict[str, Tokenizer]:
    def load(directory: Path) -> Tokenizer:
        return load_tokenizer(TokenizerSource("tokenizer.json", directory / "tokenizer.json", {}))

    return {"smollm2": load(smollm2), "qwen3": load(tiny_qwen3)}


def offsets(tokenizer: Tokenizer, prompt: str | list[int]) -> tuple[list[int], list[int]]:
    """Return the token ids and places of an echoed prompt."""
    given = isinstance(prompt, str)
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=False)
    stream: Any = SimpleNamespace(prompt_token_ids=tuple(ids), prompt_logprobs=(None,) * len(ids))
    return ids, [token.place for token in Echo(text, is_given=given).tokens(stream, tokenizer)]


TEXTS = st.text(st.sampled_from("hi aé漢🦙\n1<|im_end|>") | st.characters(codec="utf-8"), max_size=12)


@pytest.mark.weights
@pytest.mark.parametrize("name", ["smollm2", "qwen3"])
@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_offsets_of_prompts_are_what_is_decoded_of_the_tokens_before(
    name: str, text: str, tokenizer_of: dict[str, Tokenizer]
) -> None:
    tokenizer = tokenizer_of[name]
    for prompt in (text, tokenizer.encode(text)):
        ids, places = offsets(tokenizer, prompt)
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        for count, place in enumerate(places):
            before = tokenizer.decode(ids[:count], skip_special_tokens=False)
            assert whole[:place] == before.rstrip("\ufffd") or "\ufffd" in whole
            assert place <= len(before)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_offsets_of_prompts_whose_characters_fall_back_to_bytes(text: str) -> None:
    """There the library makes U+FFFD of whole characters before a half one, so their bytes are counted."""
    tokenizer = sentencepiece()
    ids, places = offsets(tokenizer, text)
    for count, place in enumerate(places):
        before = b"".join(map(tokenizer.token_bytes, ids[1:count]))
        characters = codecs.getincrementaldecoder("utf-8")().decode(before)
        assert place == len(characters.removeprefix(" "))


def test_a_prompt_that_gets_bos_and_a_space() -> None:
    tokenizer = sentencepiece()
    assert offsets(tokenizer, "hi hi")[1] == [0, 0, 2]
    assert offsets(tokenizer, "hi é hi")[1] == [0, 0, 2, 3, 3, 4]
    assert offsets(tokenizer, [1, 262, 262])[1] == [0, 3, 6]  # <s> hi hi
