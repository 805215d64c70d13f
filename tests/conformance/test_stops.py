"""Section D2 of shared/design/conformance.md: stops and lengths."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.support import (
    PROMPT,
    SMALL,
    decode,
    encode,
    fake_engine,
    favours,
    forced,
    ids_in,
    read,
    sampling,
    text_of,
)
from tests.fakes import EOS, SECOND_EOS, ids_of, says
from tinyllm import AsyncEngine, ContextLengthError, Engine, FinishReason, InvalidRequestError, SamplingParams

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
LONG = SamplingParams(max_tokens=1000)


@pytest.mark.anyio
async def test_d10_a_stop_string_in_pieces() -> None:
    """Output ABCDEFGHIJ in pieces, stop DEFGHIJ: "ABC" only, finish stop, stop_reason the string."""
    async with fake_engine(says("ABCDEFGHIJKLM")) as engine:
        pieces = await read(engine.generate("x", sampling(max_tokens=100, stop=["DEFGHIJ"])))
    assert text_of(pieces) == "ABC"
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * 9
    assert (pieces[-1].finish_reason, pieces[-1].stop_reason) == (STOP, "DEFGHIJ")


def test_d10_with_real_tokens(tiny: Engine) -> None:
    """The same where the stop string begins and ends inside tokens, at every cut; and kept if asked."""
    text = "The answer is forty-two. User: more 🦙 and more"
    ids = encode(tiny, text)
    for stop in ("swer is", "two", ". User:", "🦙", " 🦙 a", "e", "and more"):
        result = tiny.generate(PROMPT, forced(ids, stop=[stop]))
        assert (result.text, result.finish_reason) == (text[: text.index(stop)], STOP)
        assert result.choices[0].stop_reason == stop
        kept = tiny.generate(PROMPT, forced(ids, stop=[stop], include_stop_str_in_output=True))
        assert kept.text == text[: text.index(stop)] + stop
        assert result.usage.completion_tokens == kept.usage.completion_tokens <= len(ids)


@pytest.mark.anyio
@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("stop", ["\nUser:", "the end", "🦙 ď"])
async def test_d11_no_character_leaks(chat: bool, stop: str) -> None:
    """A stop string split over tokens, on generate and chat: not one character of it is ever shown."""
    async with fake_engine(says(f"Once {stop} upon")) as engine:
        params = sampling(max_tokens=100, stop=stop, n=2)
        stream = (
            engine.chat([{"role": "user", "content": "hi"}], params)
            if chat
            else engine.generate("hi", params)
        )
        pieces = await read(stream)
    for index in range(2):
        assert text_of([piece for piece in pieces if piece.index == index]) == "Once "


@pytest.mark.anyio
async def test_d12_only_what_can_still_match_is_held() -> None:
    """Stop "b,c", text "a,b,x</tool>": what is held is the part that can match, and it all comes out."""
    text, stop = "a,b,x</tool>b,b,cd", "b,c"
    async with fake_engine(says(text)) as engine:
        pieces = await read(engine.generate("x", sampling(max_tokens=100, stop=[stop])))
    shown, said = "", ""
    for piece in pieces[:-1]:
        shown += piece.text
        said += bytes(piece.token_ids).decode()
        held = said[len(shown) :]
        assert said.startswith(shown)
        assert stop.startswith(held)
        assert not any(stop.startswith(said[-length:]) for length in range(len(held) + 1, len(stop)))
    assert text_of(pieces) == "a,b,x</tool>b,"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("end", "options"),
    [
        (EOS, {"max_tokens": 100}),
        (ids_of("#")[0], {"max_tokens": 100, "stop_token_ids": [35]}),
        (ids_of("#")[0], {"max_tokens": 5}),
        (ids_of("#")[0], {"max_tokens": 100, "stop": ["stop it", "#"]}),
    ],
)
async def test_d13_held_text_is_delivered(end: int, options: dict[str, Any]) -> None:
    """Text that may begin a stop string, and then the end, of whatever kind: it is delivered."""
    async with fake_engine(says("a sto", then=end)) as engine:
        pieces = await read(engine.generate("x", SamplingParams(**{"stop": ["stop it"], **options})))
    assert text_of(pieces) == "a sto"
    assert pieces[-1].finish_reason is not None


def checkpoint(source: Path, target: Path, **changes: Mapping[str, Any] | None) -> str:
    """Copy a checkpoint, with fields of its JSON files changed or (None) the file left out."""
    shutil.copytree(source, target)
    for stem, fields in changes.items():
        path = target / f"{stem}.json"
        if fields is None:
            path.unlink()
            continue
        values = {**json.loads(path.read_text()), **fields}
        path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))
    return str(target)


def test_d16_every_source_of_eos_counts(tiny_qwen2: Path, tmp_path: Path) -> None:
    """config says one id, generation_config a list, the tokenizer a third: each of them ends the text."""
    model = checkpoint(
        tiny_qwen2,
        tmp_path / "m",
        config={"eos_token_id": 40},
        generation_config={"eos_token_id": [41, 42]},
        tokenizer_config={"eos_token": "<|endoftext|>"},
    )
    with Engine(model=model, **SMALL) as engine:
        third = encode(engine, "<|endoftext|>")
        assert len(third) == 1
        for eos in (40, 41, 42, *third):
            params = forced([50, 51, eos, 52], ignore_eos=False)
            result = engine.generate(PROMPT, params)
            assert (result.token_ids, result.finish_reason) == ((50, 51, eos), STOP)
            assert result.choices[0].stop_reason is None
            assert result.text == decode(engine, [50, 51])
        was_eos = encode(engine, "<|im_end|>")[0]  # of the checkpoint before it was changed
        result = engine.generate(PROMPT, forced([50, was_eos, 52], ignore_eos=False))
        assert (len(result.token_ids), result.finish_reason) == (3, LENGTH)


@pytest.mark.weights
def test_d16_a_real_chat_ends(smollm2: Path) -> None:
    """A real model ends its turn with the id that its template ends turns with, and does not show it."""
    with Engine(model=str(smollm2), **SMALL) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=64)
        result = engine.chat([{"role": "user", "content": "Say hello in one word."}], params)
        assert result.finish_reason is STOP
        assert list(result.token_ids[-1:]) == encode(engine, "<|im_end|>")
        assert "<|" not in result.text


def test_d17_eos_of_the_tokenizer_alone(tiny_qwen2: Path, tmp_path: Path) -> None:
    """No generation_config.json and a null eos in config: it loads, and the tokenizer's eos ends texts."""
    model = checkpoint(tiny_qwen2, tmp_path / "m", config={"eos_token_id": None}, generation_config=None)
    with Engine(model=model, **SMALL) as engine:
        eos = encode(engine, "<|im_end|>")[0]
        result = engine.generate(PROMPT, forced([50, eos, 52], ignore_eos=False))
        assert (result.token_ids, result.finish_reason) == ((50, eos), STOP)


def test_d17_no_eos_anywhere(tiny_qwen2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No file names an eos: it loads with one warning, and answers run to their length."""
    model = checkpoint(
        tiny_qwen2,
        tmp_path / "m",
        config={"eos_token_id": None},
        generation_config=None,
        tokenizer_config={"eos_token": ...},
    )
    with caplog.at_level(logging.WARNING, "tinyllm"), Engine(model=model, **SMALL) as engine:
        result = engine.generate([9] * 240, SamplingParams(temperature=0.0))
        assert (len(result.token_ids), result.finish_reason) == (16, LENGTH)
    assert len([record for record in caplog.records if "end-of-sequence" in record.getMessage()]) == 1


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 3}], ids=str)
@pytest.mark.parametrize("favourites", [(2, 0), (0, 2)])
def test_d18_no_eos_before_min_tokens(
    llama: Engine, favourites: tuple[int, int], options: dict[str, float]
) -> None:
    """Two EOS ids, min_tokens 4, either of them the favourite: none within the first 4, then at once."""
    for wish in (
        {"logits_processors": (favours(*favourites),)},
        {"logit_bias": {favourites[0]: 100, favourites[1]: -100}},
    ):
        result = llama.generate(PROMPT, sampling(min_tokens=4, max_tokens=20, **options, **wish))
        assert not {0, 2} & set(result.token_ids[:4])
        assert (result.token_ids[4:], result.finish_reason) == ((favourites[0],), STOP)


def test_d20_the_prompt_does_not_count(llama: Engine) -> None:
    """A long prompt and min_tokens: only output counts; ignore_eos gives exactly max_tokens."""
    prompt = [9] * 200
    wish = {"temperature": 0.0, "logits_processors": (favours(2),)}
    result = llama.generate(prompt, sampling(min_tokens=5, max_tokens=20, **wish))
    assert (len(result.token_ids), result.finish_reason) == (6, STOP)
    result = llama.generate(prompt, sampling(max_tokens=20, ignore_eos=True, **wish))
    assert (result.token_ids, result.finish_reason) == ((2,) * 20, LENGTH)
    assert (result.text, result.usage.completion_tokens) == ("", 20)


@pytest.mark.anyio
async def test_d21_stop_strings_wait_for_min_tokens() -> None:
    """min_tokens 8 and a stop string at 2: it does not count before the 8th token, and then does."""
    async with fake_engine(says("ab\ncd\nefgh\nij")) as engine:
        result = await engine.generate("x", sampling(min_tokens=8, max_tokens=100, stop="\n"))
        ninth = await engine.generate("x", sampling(min_tokens=6, max_tokens=100, stop="\n"))
    assert (result.text, result.finish_reason) == ("ab\ncd\nefgh", STOP)
    assert (ninth.text, ninth.usage.completion_tokens) == ("ab\ncd", 6)  # the 6th itself counts


@pytest.mark.anyio
async def test_d21_stop_token_ids_wait_too(tiny_llama: Path) -> None:
    """The same for stop token ids, and one that is also an EOS id is an EOS id."""
    async with AsyncEngine(model=str(tiny_llama), **SMALL) as engine:
        wish = {"temperature": 0.0, "logits_processors": (favours(77),), "stop_token_ids": [77]}
        result = await engine.generate(PROMPT, sampling(min_tokens=3, max_tokens=9, **wish))
        assert (len(result.token_ids), result.choices[0].stop_reason) == (4, 77)
        assert 77 not in result.token_ids[:3]
        wish = {"temperature": 0.0, "logits_processors": (favours(2),), "stop_token_ids": [2]}
        result = await engine.generate(PROMPT, sampling(max_tokens=9, **wish))
        assert (result.token_ids, result.choices[0].stop_reason) == ((2,), None)
        result = await engine.generate(PROMPT, sampling(max_tokens=9, ignore_eos=True, **wish))
        assert (result.token_ids, result.choices[0].stop_reason) == ((2,), 2)


@pytest.mark.anyio
async def test_d22_stop_token_ids_that_do_not_exist(tiny_llama: Path) -> None:
    """stop_token_ids beyond the vocabulary or negative: refused by name, and the others are unhurt."""
    async with AsyncEngine(model=str(tiny_llama), **SMALL) as engine:
        other = engine.generate("Hello", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))
        await anext(other)
        for wrong in (engine.info.vocab_size, 10**30, -1, True, 1.5, "7"):
            with pytest.raises(InvalidRequestError) as caught:
                engine.generate("Hello", sampling(stop_token_ids=[wrong], min_tokens=1, max_tokens=9))
            assert caught.value.param == "stop_token_ids"
        assert len((await other).token_ids) == 30
        assert engine.num_requests == 0


def test_d23_prompts_and_lengths_beyond_the_context(llama: Engine) -> None:
    """Prompt >= context, or prompt + max_tokens > context: refused with the numbers; never a negative."""
    for prompt, max_tokens in (
        ([9] * 256, None),
        ([9] * 256, 1),
        ([9] * 300, 0),
        ([9] * 250, 7),
        ([9], 10**30),
    ):
        with pytest.raises(ContextLengthError) as caught:
            llama.generate(prompt, SamplingParams(max_tokens=max_tokens))
        message = str(caught.value)
        assert str(len(prompt)) in message
        assert "256" in message
        assert "-" not in message.replace("-of-", "")
        assert caught.value.param in ("prompt", "max_tokens")
    greedy = {"temperature": 0.0, "ignore_eos": True}
    for prompt, max_tokens, length in (([9] * 250, 6, 6), ([9] * 255, None, 1), ([9] * 256, 0, 0)):
        result = llama.generate(prompt, sampling(max_tokens=max_tokens, **greedy))
        assert (len(result.token_ids), result.finish_reason) == (length, LENGTH)


@pytest.mark.anyio
async def test_d23_a_long_text_is_refused_by_its_stream() -> None:
    """A text too long to be encoded at once: its stream says so, and the next request runs."""
    async with fake_engine() as engine:
        stream = engine.generate("x" * 100_000, LONG)
        with pytest.raises(ContextLengthError, match="100000"):
            await stream
        assert (await engine.generate("x", SamplingParams(max_tokens=2))).finish_reason is LENGTH


@pytest.mark.anyio
async def test_d16_either_eos_id_ends_a_stream_once() -> None:
    """Either EOS id: one last piece with finish stop, and no text of it."""
    for eos in (EOS, SECOND_EOS):
        async with fake_engine(says("ab", then=eos)) as engine:
            pieces = await read(engine.generate("x", LONG))
        assert (text_of(pieces), ids_in(pieces)) == ("ab", [*ids_of("ab"), eos])
        assert [piece.finish_reason for piece in pieces] == [None, None, STOP]
