"""Datasets: lengths, labels, windows and seeds."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.serve.scripted import scripted, whole
from tinyllm.bench.serve.client import open_client
from tinyllm.bench.serve.datasets import make_samples, shares_prompts
from tinyllm.bench.serve.samples import Sample
from tinyllm.bench.serve.settings import DatasetOptions
from tinyllm.bench.serve.synthetic import burstgpt_like
from tinyllm.errors import ConfigError


def make(**options: Any) -> list[Sample]:
    """Make a dataset with a server whose tokens are words."""

    async def main() -> list[Sample]:
        async with scripted(lambda body, reply: whole(reply, ["x"])) as server:
            server.pages["/tokenize"] = lambda body: {"tokens": body["prompt"].split()}
            async with open_client(server.target()) as client:
                return await make_samples(DatasetOptions(**options), client)

    return asyncio.run(main())


def tokens(sample: Sample, turn: int = 0) -> int:
    prompt = sample.turns[turn].prompt
    return len(prompt.split() if isinstance(prompt, str) else prompt)


def test_fixed_lengths() -> None:
    samples = make(num_prompts=5, num_warmups=2, random_input_len=30, random_output_len=7)
    assert [tokens(sample) for sample in samples] == [30] * 7
    assert {sample.turns[0].max_tokens for sample in samples} == {7}
    assert len({str(sample.turns[0].prompt) for sample in samples}) == 7


def test_random_lengths_and_a_shared_prefix() -> None:
    options = {"random_input_len": 100, "random_range_ratio": 0.5, "random_prefix_len": 20, "long_from": 120}
    samples = make(num_prompts=40, vocab_size=5000, **options)
    lengths = [tokens(sample) for sample in samples]
    assert min(lengths) >= 70
    assert max(lengths) <= 170
    assert len(set(lengths)) > 10
    assert len({tuple(sample.turns[0].prompt[:20]) for sample in samples}) == 1
    assert len({tuple(sample.turns[0].prompt[:30]) for sample in samples}) == 40
    assert all((sample.label == "long") == (tokens(sample) >= 120) for sample in samples)


def test_prefixes_repeat() -> None:
    options = {"prefix_repetition_prefix_len": 12, "prefix_repetition_suffix_len": 6}
    samples = make(
        dataset_name="prefix_repetition", num_prompts=12, prefix_repetition_num_prefixes=3, **options
    )
    beginnings = Counter(" ".join(str(sample.turns[0].prompt).split()[:12]) for sample in samples)
    assert sorted(beginnings.values()) == [4, 4, 4]
    assert {tokens(sample) for sample in samples} == {18}


def test_kinds_are_mixed_by_weight() -> None:
    samples = make(dataset_name="mixed", num_prompts=200, mix=["s=3:5x4", "l=1:50x2"], vocab_size=2000)
    kinds = Counter((sample.label, tokens(sample), sample.turns[0].max_tokens) for sample in samples)
    assert set(kinds) == {("s", 5, 4), ("l", 50, 2)}
    assert 110 < kinds["s", 5, 4] < 190


@pytest.mark.parametrize("kind", ["s", "s=1:5", "s=0:5x5", "s=1:0x5", "=1:5x5"])
def test_a_wrong_kind_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="--mix"):
        make(dataset_name="mixed", mix=[kind], vocab_size=100)


def test_conversations_have_turns() -> None:
    samples = make(
        dataset_name="multi-turn", num_prompts=3, turns=3, random_input_len=6, random_prefix_len=10
    )
    assert [[tokens(sample, turn) for turn in range(3)] for sample in samples] == [[16, 6, 6]] * 3


@given(st.integers(0, 3), st.integers(1, 40), st.integers(5, 400), st.integers(1, 400))
def test_a_trace_is_within_its_maxima_and_grows_at_its_end(
    seed: int, count: int, most_in: int, most_out: int
) -> None:
    options = DatasetOptions(dataset_name="burstgpt", max_input_len=most_in, max_output_len=most_out)
    rows = burstgpt_like(options, random.Random(seed), count)
    assert all(1 <= row.prompt_tokens <= most_in and 1 <= row.output_tokens <= most_out for row in rows)
    assert [row.timestamp for row in rows] == sorted(row.timestamp for row in rows)
    assert burstgpt_like(options, random.Random(seed), count + 5)[:count] == rows


def test_a_trace_is_heavy_tailed_and_bursty() -> None:
    options = DatasetOptions(dataset_name="burstgpt", max_input_len=2000, max_output_len=800)
    rows = burstgpt_like(options, random.Random(0), 5000)
    prompts = sorted(row.prompt_tokens for row in rows)
    outputs = sorted(row.output_tokens for row in rows)
    assert sum(prompts) / 5000 > 2 * prompts[2500]
    assert outputs[2500] == pytest.approx(100, rel=0.1)
    assert outputs[4500] / outputs[2500] == pytest.approx(2.8, rel=0.1)
    gaps = [after.timestamp - before.timestamp for before, after in itertools.pairwise(rows)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert mean == pytest.approx(1, rel=0.1)
    assert variance / mean**2 == pytest.approx(2, rel=0.2), "a gamma distribution of shape 0.5"


def test_windows_do_not_overlap() -> None:
    options = {"dataset_name": "burstgpt", "max_input_len": 20, "num_prompts": 10, "vocab_size": 3000}
    first, second = make(**options), make(**options, window=1)
    both = make(**options | {"num_prompts": 20})
    stamps = [sample.timestamp for sample in (*first, *second)]
    assert stamps == [sample.timestamp for sample in both]
    assert len({str(sample.turns[0].prompt) for sample in (*first, *second)}) > 15


def test_a_seed_gives_the_same_again() -> None:
    for options in ({"random_input_len": 9}, {"dataset_name": "burstgpt", "max_input_len": 9}):
        assert make(num_prompts=4, seed=3, **options) == make(num_prompts=4, seed=3, **options)
        assert make(num_prompts=4, seed=3, **options) != make(num_prompts=4, seed=4, **options)


def test_talks_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    long = " ".join(["word"] * 50)
    talks = [["one two three four five", "a b c d e f"], [long, "a b c d"], ["hi", "a b c d"]]
    talks += [["q q q q", long, "r r r r", "s s s s s"]]
    entries = [
        {"conversations": [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(talk)]}
        for talk in talks
    ]
    path.write_text(json.dumps(entries))
    file = {"dataset_name": "sharegpt", "dataset_path": path, "max_input_len": 40, "max_output_len": 20}
    samples = make(**file)
    assert sorted(sample.turns[0].max_tokens for sample in samples) == [6, 20]
    turns = make(**file, turns=2)
    assert sorted(len(sample.turns) for sample in turns) == [1, 2]
    assert {turn.max_tokens for sample in make(**file, output_len=3) for turn in sample.turns} == {3}


def test_lines_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "x", "output_tokens": 3}\n{"prompt": "y"}\n{"prompt": "z"}\n')
    samples = make(dataset_name="custom", dataset_path=path, num_prompts=2)
    assert [(sample.turns[0].prompt, sample.turns[0].max_tokens) for sample in samples] == [
        ("x", 3),
        ("y", 256),
    ]
    assert make(dataset_name="custom", dataset_path=path, output_len=9)[0].turns[0].max_tokens == 9


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"turns": 2}, "--turns"),
        ({"dataset_name": "mixed"}, "--mix"),
        ({"dataset_name": "custom"}, "--dataset-path"),
        ({"dataset_name": "custom", "dataset_path": "x", "tokenizer": "m"}, "--tokenizer"),
        ({"dataset_name": "burstgpt", "random_input_len": 3}, "--random-input-len"),
        (
            {"dataset_name": "burstgpt", "dataset_path": "x", "burstgpt_burstiness": 2},
            "--burstgpt-burstiness",
        ),
        ({"dataset_name": "multi-turn", "vocab_size": 10}, "--vocab-size"),
        ({"vocab_size": 10, "tokenizer": "m"}, "--vocab-size"),
        ({"num_prompts": 0}, "--num-prompts"),
        ({"random_range_ratio": 1}, "--random-range-ratio"),
        ({"dataset_name": "imagenet"}, "--dataset-name"),
    ],
)
def test_an_option_that_means_nothing_is_refused(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        DatasetOptions(**options).check()


def test_what_shares_prompts_on_purpose() -> None:
    assert shares_prompts(DatasetOptions(dataset_name="multi-turn"))
    assert shares_prompts(DatasetOptions(dataset_name="prefix_repetition"))
    assert shares_prompts(DatasetOptions(random_prefix_len=5))
    assert not shares_prompts(DatasetOptions())
