from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.support import load, random_ids
from tinyllm.attention.paged import PagedAttention
from tinyllm.errors import ConfigError
from tinyllm.runner.reference import generate_reference


@pytest.mark.parametrize("checkpoint", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def test_cached_is_uncached(checkpoint: str, request: pytest.FixtureRequest) -> None:
    model = load(request.getfixturevalue(checkpoint))
    for length in (1, 8, 30):
        prompt = random_ids(model.config, length, seed=length)
        cached = list(generate_reference(model, prompt, max_tokens=24))
        assert cached == list(generate_reference(model, prompt, max_tokens=24, use_cache=False))
        assert len(cached) == 24


def test_a_cache_that_the_backend_cannot_serve_is_refused(tiny_llama: Path) -> None:
    """The loop's one block is as long as the sequence can get; the C kernel wants a multiple of 16."""
    model, reference = load(tiny_llama, backend=PagedAttention()), load(tiny_llama)
    with pytest.raises(ConfigError, match="block_size must be a multiple of 16"):
        next(generate_reference(model, [1, 2, 3], max_tokens=12))
    expected = list(generate_reference(reference, [1, 2, 3], max_tokens=13))
    assert list(generate_reference(model, [1, 2, 3], max_tokens=13)) == expected


@pytest.mark.weights
def test_cached_is_uncached_on_a_real_model(smollm2: Path) -> None:
    model = load(smollm2)
    prompt = random_ids(model.config, 20, seed=1)
    cached = list(generate_reference(model, prompt, max_tokens=12))
    assert cached == list(generate_reference(model, prompt, max_tokens=12, use_cache=False))


def test_ends_with_the_end_of_sequence_token(tiny_llama: Path) -> None:
    model = load(tiny_llama)
    ids = list(generate_reference(model, [1, 2, 3], max_tokens=10))
    end = ids[4]
    expected = ids[: ids.index(end) + 1]
    assert (
        list(generate_reference(model, [1, 2, 3], max_tokens=10, eos_token_ids=frozenset({end}))) == expected
    )


def test_nothing_is_computed_before_it_is_asked_for(tiny_llama: Path) -> None:
    tokens = generate_reference(load(tiny_llama), [1, 2, 3], max_tokens=1)
    assert isinstance(next(tokens), int)
    with pytest.raises(StopIteration):
        next(tokens)
