"""A token's numbers depend on its own sequence alone, bit for bit.

Not on batch mates, on how the sequence is cut into steps, on its blocks, nor on what lies in the KV cache.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.support import CONFIG, CPU, Batch, alone, load, qwen3_config, random_ids, random_model
from tinyllm.attention.backends import BACKENDS
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.linear import can_pack

needs_packing = pytest.mark.skipif(not can_pack(torch.float32, CPU), reason="not packed on this CPU")

DTYPES = [
    pytest.param(dtype, marks=pytest.mark.skipif(not can_pack(dtype, CPU), reason="not packed on this CPU"))
    for dtype in (torch.float32, torch.bfloat16)
]


@pytest.fixture(params=[1, 2, 3], ids="threads={}".format)
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Work is shared out differently with other numbers of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def assert_cut_anyhow_is_the_same(model: CausalLM, lengths: list[int], seed: int) -> None:
    """Compute sequences of these lengths in random pieces and company, and compare with each alone."""
    rng = random.Random(seed)
    token_ids = [random_ids(model.config, length, seed + i) for i, length in enumerate(lengths)]
    block_size = rng.choice([1, 4, 16, 64] if model.backend.name == "reference" else [16, 32, 64])
    batch = Batch(model, token_ids, block_size=block_size, seed=seed)
    while left := [i for i, s in enumerate(batch.sequences) if s.num_computed < len(s.token_ids)]:
        counts = {}
        for i in rng.sample(left, rng.randint(1, len(left))):
            most = len(batch.sequences[i].token_ids) - batch.sequences[i].num_computed
            counts[i] = min(most, rng.choice([1, 1, 2, 7, 30, most]))
        batch.step(counts)
    for sequence in batch.sequences:
        expected = alone(model, sequence.token_ids)
        assert torch.equal(sequence.hidden, expected), f"seed {seed}, lengths {lengths}"
        assert torch.isfinite(expected).all()


@pytest.fixture(scope="module", params=[f"{a}-{b}" for a in ("llama", "qwen3") for b in BACKENDS])
def configs(request: pytest.FixtureRequest) -> dict[torch.dtype, CausalLM]:
    architecture, backend = request.param.split("-")
    config = CONFIG if architecture == "llama" else qwen3_config()
    if backend == "paged":
        config = replace(config, head_dim=32)
    return {
        dtype: random_model(config, dtype, BACKENDS[backend]()) for dtype in (torch.float32, torch.bfloat16)
    }


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=8), seed=st.integers(0, 2**32))
def test_sequences_are_independent_of_cuts_and_mates(
    configs: dict[torch.dtype, CausalLM], dtype: torch.dtype, lengths: list[int], seed: int
) -> None:
    assert_cut_anyhow_is_the_same(configs[dtype], lengths, seed)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sequences_are_independent_with_any_number_of_threads(dtype: torch.dtype, backend: str) -> None:
    model = random_model(replace(CONFIG, head_dim=32), dtype, BACKENDS[backend]())
    assert_cut_anyhow_is_the_same(model, [700, 530, 64, 513, 3, 1], seed=1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tiny_checkpoints(
    tiny_llama: Path, tiny_qwen2: Path, tiny_qwen3: Path, dtype: torch.dtype, backend: str
) -> None:
    for path in (tiny_llama, tiny_qwen2, tiny_qwen3):
        model = load(path, dtype, BACKENDS[backend]())
        for seed in range(2):
            assert_cut_anyhow_is_the_same(model, [90, 33, 1, 17, 64], seed)


@pytest.mark.weights
@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_smollm2(smollm2: Path, dtype: torch.dtype, backend: str) -> None:
    assert_cut_anyhow_is_the_same(load(smollm2, dtype, BACKENDS[backend]()), [150, 40, 1, 9, 64], seed=5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_token_by_token_is_the_same_as_all_at_once(dtype: torch.dtype) -> None:
    model = random_model(CONFIG, dtype)
    ids = random_ids(CONFIG, 70, seed=3)
    batch = Batch(model, [ids])
    for _ in ids:
        batch.step({0: 1})
    assert torch.equal(batch.sequences[0].hidden, alone(model, ids))


@needs_packing
@pytest.mark.parametrize("kv_cache_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_independent_whatever_the_dtype_of_the_kv_cache(kv_cache_dtype: torch.dtype) -> None:
    model = random_model()
    ids = random_ids(CONFIG, 50, seed=4)
    batch = Batch(model, [ids, ids[::-1]], kv_cache_dtype=kv_cache_dtype)
    for count in (1, 19, 30):
        batch.step({1: count, 0: count})
    assert torch.equal(batch.sequences[0].hidden, alone(model, ids, kv_cache_dtype))


@needs_packing
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_lies_in_unused_slots_does_not_matter_even_when_it_is_not_a_number(backend: str) -> None:
    model = random_model(replace(CONFIG, head_dim=32), backend=BACKENDS[backend]())
    ids = random_ids(CONFIG, 37, seed=5)
    batch = Batch(model, [ids], garbage=float("nan"))
    for count in (5, 1, 20, 11):
        batch.step({0: count})
    assert torch.equal(batch.sequences[0].hidden, alone(model, ids))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_do_not_depend_on_other_rows(dtype: torch.dtype) -> None:
    model = random_model(CONFIG, dtype)
    hidden = torch.randn(40, CONFIG.hidden_size).to(dtype)
    logits = model.compute_logits(hidden)
    assert logits.dtype == torch.float32
    for rows in (1, 2, 3, 17):
        assert torch.equal(model.compute_logits(hidden[5 : 5 + rows]), logits[5 : 5 + rows])
    assert model.compute_logits(hidden[:0]).shape == (0, CONFIG.vocab_size)
