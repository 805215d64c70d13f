"""Section D3 of shared/design/conformance.md: sampling and log probabilities."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

from tests.conformance.support import PROMPT, SMALL, read, sampling, text_of
from tinyllm import AsyncEngine, Engine, FinishReason, GenerationResult, InvalidRequestError, SamplingParams


def run(engine: Engine, **options: Any) -> GenerationResult:
    return engine.generate(PROMPT, SamplingParams(**{"max_tokens": 16, "ignore_eos": True, **options}))


def sharpens(_: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits * 8


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e-4},
        {"temperature": 1e-6},
        {"temperature": 5e-324},
        {"temperature": 1.0, "top_p": 1e-4},
        {"temperature": 1.0, "top_p": 5e-324},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1e6, "top_k": 1},
        {"temperature": 0.0, "top_k": 50, "top_p": 0.5, "typical_p": 0.5},
    ],
    ids=str,
)
def test_d24_the_smallest_temperature_and_top_p(tiny: Engine, options: dict[str, float]) -> None:
    """temperature or top_p next to nothing: finite, not empty, equal to greedy."""
    # Random models are nearly indifferent: their best token alone does not reach even a top_p of 1e-4.
    wish = {"logits_processors": (sharpens,)}
    greedy = run(tiny, temperature=0.0, **wish)
    result = run(tiny, seed=1, logprobs=1, **wish, **options)
    assert result.token_ids == greedy.token_ids
    assert result.logprobs is not None
    assert all(math.isfinite(entry.logprob) for entry in result.logprobs)


@pytest.mark.parametrize(
    "options", [{"temperature": 1e300}, {"temperature": 1.0, "typical_p": 1e-9}], ids=str
)
def test_d24_the_other_end(tiny: Engine, options: dict[str, float]) -> None:
    """A temperature without end, a typical_p next to nothing: an answer all the same."""
    assert len(run(tiny, seed=1, **options).token_ids) == 16


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("top_k", 0.01),
        ("top_k", "5"),
        ("top_k", -2),
        ("top_k", True),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", math.nan),
        ("n", 0),
        ("n", True),
        ("n", 17),
        ("temperature", -1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("min_p", math.nan),
        ("presence_penalty", math.nan),
        ("frequency_penalty", 3),
        ("repetition_penalty", 0),
        ("repetition_penalty", math.inf),
        ("logprobs", -1),
        ("logprobs", 21),
        ("logprobs", True),
        ("seed", 2**63),
        ("max_tokens", -1),
        ("max_tokens", 2.0),
        ("stop", [""]),
        ("stop", ["a"] * 17),
        ("temprature", 1.0),
    ],
)
def test_d25_wrong_values_are_refused_by_name(llama: Engine, param: str, value: Any) -> None:
    """Each wrong value names its field; nothing is accepted; the next request runs."""
    with pytest.raises(InvalidRequestError) as caught:
        run(llama, **{param: value})
    assert caught.value.param == param
    assert len(run(llama, max_tokens=2).token_ids) == 2


def test_d25_top_k_beyond_the_vocabulary_is_all(llama: Engine) -> None:
    """top_k 0, -1, the vocabulary and more than any integer the tensor library has: all of it."""
    results = [run(llama, temperature=1.0, seed=5, top_k=k).token_ids for k in (None, 0, -1, 10**6, 10**30)]
    assert len(set(results)) == 1


BIASES: list[Any] = [
    *({"999999": 5}, {999999: 5}, {-1: 5}, {10**30: 5}, {"9" * 5000: 1}, {"x": 1}, {1.5: 1}, {True: 1}),
    *({5: 101}, {5: math.nan}, {5: -math.inf}, {5: "1"}, [5], "5"),
]


@pytest.mark.anyio
async def test_d26_biases_of_tokens_that_do_not_exist(shared: AsyncEngine) -> None:
    """logit_bias of an id outside the vocabulary, or no number: refused by name; others are unhurt."""
    other = shared.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
    for bias in BIASES:
        with pytest.raises(InvalidRequestError) as caught:
            shared.generate("x", SamplingParams(logit_bias=bias))
        assert caught.value.param == "logit_bias"
        assert len(str(caught.value)) < 400
    assert len((await other).token_ids) == 12


@pytest.fixture(scope="module")
async def shared(tiny_llama: Path) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(model=str(tiny_llama), **SMALL) as engine:
        yield engine


@pytest.mark.anyio
async def test_d28_a_seed_decides_whatever_else_runs(shared: AsyncEngine) -> None:
    """seed 42 beside unseeded requests, four times: identical each time, and equal to the run alone."""
    seeded = SamplingParams(temperature=1.0, seed=42, max_tokens=12, ignore_eos=True, n=2)
    alone = await shared.generate(PROMPT, seeded)
    assert alone.choices[0].token_ids != alone.choices[1].token_ids
    others = set()
    for mates in range(4):
        streams = [
            shared.generate(PROMPT, SamplingParams(temperature=1.0, max_tokens=10 + mate, ignore_eos=True))
            for mate in range(mates + 1)
        ]
        mine = await shared.generate(PROMPT, seeded)
        assert [choice.token_ids for choice in mine.choices] == [choice.token_ids for choice in alone.choices]
        others |= {(await stream).token_ids[:10] for stream in streams}
    assert len(others) == 1 + 2 + 3 + 4


@pytest.mark.anyio
async def test_d29_seeds_told_apart(shared: AsyncEngine) -> None:
    """Five at once with seeds of their own differ; two at once with the same seed are equal."""
    results: dict[str, tuple[int, ...]] = {}

    async def ask(name: str, seed: int) -> None:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=12, ignore_eos=True)
        results[name] = (await shared.generate(PROMPT, params)).token_ids

    async with anyio.create_task_group() as tasks:
        for seed in (0, 1, -1, 2**63 - 1, 42):
            tasks.start_soon(ask, f"distinct {seed}", seed)
    assert len(set(results.values())) == 5
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask, "one", 42)
        tasks.start_soon(ask, "two", 42)
    assert results["one"] == results["two"] == results["distinct 42"]


def test_d29_equal_prompts_of_a_batch_without_a_seed_differ(llama: Engine) -> None:
    """The same prompt several times in one batch: drawn apart, and each result says with which seed."""
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    results = llama.generate([PROMPT] * 4, params, progress=False)
    assert len({result.token_ids for result in results}) == 4
    for result in results:
        again = llama.generate(PROMPT, params.model_copy(update={"seed": result.params.seed}))
        assert again.token_ids == result.token_ids


def test_d30_scores_are_numbers(tiny: Engine) -> None:
    """Log probabilities where one token is left (top_k 1, allowed_token_ids, a bias): the model's own."""
    plain = run(tiny, temperature=0.0, logprobs=5)
    assert plain.logprobs is not None
    for options in (
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "allowed_token_ids": [plain.token_ids[0]], "max_tokens": 1},
        {"temperature": 1.0, "logit_bias": {plain.token_ids[0]: 100}, "max_tokens": 1},
    ):
        result = run(tiny, logprobs=5, **options)
        assert result.logprobs is not None
        assert result.logprobs == plain.logprobs[: len(result.logprobs)]
    for entry in plain.logprobs:
        assert all(math.isfinite(each.logprob) and each.logprob <= 0 for each in (entry, *entry.top))
        assert [top.logprob for top in entry.top] == sorted((t.logprob for t in entry.top), reverse=True)
        assert entry.top[0].token_id == entry.token_id  # greedy


def test_d30_scores_of_the_prompt(tiny: Engine) -> None:
    """An echoed prompt's scores: none for the first token, then those that the answer would have had."""
    answer = run(tiny, temperature=0.0, logprobs=3, max_tokens=6)
    scored = tiny.generate(
        [*PROMPT, *answer.token_ids], SamplingParams(max_tokens=0, prompt_logprobs=3, temperature=0.0)
    )
    assert scored.prompt_logprobs is not None
    assert scored.prompt_logprobs[0] is None
    assert scored.prompt_logprobs[len(PROMPT) :] == answer.logprobs


def test_d31_offsets_can_be_had(tiny: Engine) -> None:
    """Prompt and answer scored together: tokens of both, whose bytes joined are prompt and text."""
    assert tiny.tokenizer is not None
    prompt = "a 🦙 b"
    result = tiny.generate(
        prompt, SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    )
    assert result.prompt_logprobs is not None
    assert result.logprobs is not None
    first = tiny.tokenizer.token_bytes(result.prompt_token_ids[0])
    scored = [entry.bytes for entry in result.prompt_logprobs if entry is not None]
    assert b"".join([first, *scored]).decode() == prompt
    text = b"".join(entry.bytes for entry in result.logprobs).decode(errors="replace")
    assert text == result.text


@pytest.mark.anyio
async def test_d32_two_answers_with_scores(shared: AsyncEngine) -> None:
    """n 2, logprobs 0, streamed: both complete, one finish_reason each, every token scored, usage exact."""
    params = SamplingParams(temperature=1.0, seed=1, n=2, logprobs=0, max_tokens=9, ignore_eos=True)
    stream = shared.generate(PROMPT, params)
    pieces = await read(stream)
    whole = await stream
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(PROMPT), 18)
    for index in range(2):
        mine = [piece for piece in pieces if piece.index == index]
        assert [piece.finish_reason for piece in mine] == [None] * 8 + [FinishReason.LENGTH]
        assert all(piece.logprobs is not None and len(piece.logprobs) == 1 for piece in mine)
        assert all(entry.top == () for piece in mine for entry in piece.logprobs or ())
        assert text_of(mine) == whole.choices[index].text


@pytest.mark.anyio
async def test_d32_answers_that_end_apart(shared: AsyncEngine) -> None:
    """Several answers of which one ends early: the others go on to their own end."""
    first = await shared.generate(PROMPT, SamplingParams(temperature=1.0, seed=1, max_tokens=9, n=3))
    stop = first.choices[1].token_ids[2]
    params = sampling(temperature=1.0, seed=1, max_tokens=9, n=3, stop_token_ids=[stop])
    result = await shared.generate(PROMPT, params)
    assert [choice.index for choice in result.choices] == [0, 1, 2]
    assert result.choices[1].token_ids == first.choices[1].token_ids[:3]
    assert result.choices[1].stop_reason == stop
    for ours, before in zip(result.choices, first.choices, strict=True):
        assert before.token_ids[: len(ours.token_ids)] == ours.token_ids


@pytest.mark.weights
def test_d28_d24_on_a_real_model(smollm2: Path) -> None:
    """Seeded answers of a real model in a batch and alone, and the smallest temperature."""
    with Engine(model=str(smollm2), **{**SMALL, "dtype": "auto"}) as engine:
        seeded = SamplingParams(temperature=0.8, top_p=0.9, seed=42, max_tokens=16)
        alone = engine.generate("The capital of France is", seeded)
        prompts = ["Once upon a time", "The capital of France is", "def main():"]
        assert engine.generate(prompts, seeded, progress=False)[1].token_ids == alone.token_ids
        greedy = engine.generate(prompts[1], SamplingParams(temperature=0.0, max_tokens=16))
        coldest = engine.generate(prompts[1], SamplingParams(temperature=1e-6, max_tokens=16))
        assert coldest.token_ids == greedy.token_ids
        assert "Paris" in greedy.text
