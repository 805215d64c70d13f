"""How workloads are spelled, and what their prompts are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.bench.workload import LATENCY, THROUGHPUT, Workload
from tinyllm.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1x32x64", Workload(1, 32, 64)),
        ("8x1024x32+shared", Workload(8, 1024, 32, shared=True)),
        ("8x64x256+4096", Workload(8, 64, 256, intruder=4096)),
    ],
)
def test_spelling(text: str, expected: Workload) -> None:
    assert Workload.parse(text) == expected
    assert str(expected) == text


@given(st.builds(Workload, st.integers(1, 99), st.integers(1, 9999), st.integers(2, 999), st.booleans()))
def test_parse_reads_what_str_writes(workload: Workload) -> None:
    assert Workload.parse(str(workload)) == workload


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1x2",
        "1x2x3x4",
        "0x2x3",
        "1x0x3",
        "1x2x1",
        "01x2x3",
        "1x2x3+",
        "1x2x3+0",
        "1x2x3+all",
        "²x2x3",
    ],
)
def test_what_is_no_workload_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no workload"):
        Workload.parse(text)


def test_prompts_are_random_and_repeatable() -> None:
    workload = Workload(4, 50, 8)
    prompts = workload.prompts(49_152, seed=1)
    assert [len(prompt) for prompt in prompts] == [50] * 4
    assert len({tuple(prompt) for prompt in prompts}) == 4
    assert all(100 <= token < 48_652 for prompt in prompts for token in prompt)
    assert prompts == workload.prompts(49_152, seed=1) != workload.prompts(49_152, seed=2)


def test_shared_prompts_share_their_beginning_and_nothing_else() -> None:
    workload = Workload(3, 40, 8, shared=True)
    prompts = workload.prompts(1000, seed=0)
    assert len({tuple(prompt[:40]) for prompt in prompts}) == 1
    assert len({tuple(prompt[40:]) for prompt in prompts}) == 3
    assert workload.length == len(prompts[0]) + 8


def test_length_counts_the_intruder() -> None:
    assert Workload(2, 8, 4, intruder=500).length == 501
    assert len(Workload(2, 8, 4, intruder=500).intruding_prompt(1000, seed=0)) == 500


def test_small_vocabularies_have_prompts_too() -> None:
    assert max(Workload(1, 200, 2).prompts(32, seed=0)[0]) < 32


def test_defaults_are_those_of_the_docs() -> None:
    assert "8x1024x32+shared" in map(str, THROUGHPUT)
    assert "8x64x256+4096" in map(str, LATENCY)
