"""The reference backend against attention written out in float64, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention.support import SPEC, assert_is_exact
from tinyllm.attention import reference
from tinyllm.attention.backends import BACKENDS, get_backend
from tinyllm.attention.metadata import AttentionMetadata
from tinyllm.attention.reference import TILE, ReferenceBackend, padded_length
from tinyllm.errors import ConfigError


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 5, 16, 64]),
    num_heads=st.sampled_from([2, 4, 6]),
    dtypes=st.sampled_from(
        [
            (torch.float32, torch.float32, 1e-5),
            (torch.bfloat16, torch.bfloat16, 2e-2),
            (torch.float32, torch.float16, 2e-3),
            (torch.bfloat16, torch.float32, 2e-2),
            (torch.float16, torch.float32, 2e-3),
        ]
    ),
    seed=st.integers(0, 1000),
)
def test_against_float64(
    lengths: list[tuple[int, int]],
    block_size: int,
    num_heads: int,
    dtypes: tuple[torch.dtype, torch.dtype, float],
    seed: int,
) -> None:
    dtype, kv_dtype, tolerance = dtypes
    spec = replace(SPEC, block_size=block_size, dtype=kv_dtype)
    assert_is_exact(ReferenceBackend(), spec, lengths, num_heads, dtype, tolerance, seed)


def test_slots_are_where_the_block_tables_say() -> None:
    metadata = ReferenceBackend().build_metadata(
        replace(SPEC, block_size=4), query_start_loc=[0, 2, 5], seq_lens=[6, 3], block_tables=[[7, 2], [5]]
    )
    assert metadata.slot_mapping.tolist() == [2 * 4 + 0, 2 * 4 + 1, 5 * 4 + 0, 5 * 4 + 1, 5 * 4 + 2]


def test_tiles_lie_at_the_same_positions_however_a_sequence_is_cut() -> None:
    def lengths(first: int, end: int) -> list[int]:
        stacks = (
            ReferenceBackend()
            .build_metadata(replace(SPEC, block_size=4096), [0, end - first], [end], [[0]])
            .stacks
        )
        return sorted(stack.hidden.shape[3] for stack in stacks for _ in range(stack.hidden.shape[0]))

    assert lengths(0, 40) == [16, 16, 32, 32, 64]
    assert lengths(31, 33) == [32, 64]
    assert lengths(1000, 1001) == [1024]


@pytest.mark.parametrize(
    ("length", "padded"), [(8, 16), (16, 16), (24, 32), (512, 512), (520, 1024), (2048, 2048)]
)
def test_padded_length(length: int, padded: int) -> None:
    assert padded_length(length) == padded


def test_a_small_workspace_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ReferenceBackend()
    spec = replace(SPEC, block_size=256)
    metadata = backend.build_metadata(spec, [0, 200], [200], [[0]])
    q, k, v = torch.randn(200, 4, 20), torch.randn(200, 2, 20), torch.randn(200, 2, 20)
    whole = backend.forward(q, k, v, backend.allocate(spec, 1)[0], metadata, 0.2)
    monkeypatch.setattr(reference, "STACK_ELEMENTS", 1)
    one_by_one = backend.build_metadata(spec, [0, 200], [200], [[0]])
    assert len(one_by_one.stacks) == 200 // TILE
    assert torch.equal(backend.forward(q, k, v, backend.allocate(spec, 1)[0], one_by_one, 0.2), whole)


def test_bytes_per_block_is_what_is_allocated() -> None:
    backend = ReferenceBackend()
    spec = replace(SPEC, num_layers=3, dtype=torch.bfloat16)
    caches = backend.allocate(spec, num_blocks=5)
    assert sum(cache.nbytes for cache in caches) == 5 * backend.bytes_per_block(spec)
    assert all(not cache.any() for cache in caches)


def test_metadata_of_another_backend_is_refused() -> None:
    metadata = AttentionMetadata([0, 1], [1], [[0]], torch.tensor([0]))
    x = torch.zeros(1, 2, 20)
    with pytest.raises(TypeError, match="build_metadata"):
        ReferenceBackend().forward(x, x, x, torch.zeros(2, 2, 16, 20), metadata, 1.0)


def test_backends_have_the_names_they_are_found_by() -> None:
    assert get_backend("reference", SPEC).name == "reference"
    assert get_backend("auto", SPEC).name in BACKENDS
    with pytest.raises(ConfigError, match=r"flash9.*reference"):
        get_backend("flash9", SPEC)
