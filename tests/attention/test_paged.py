"""The C kernel against attention written out in float64, and where it is chosen."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attention.support import SPEC, assert_is_exact
from tinyllm.attention import backends
from tinyllm.attention.backends import get_backend
from tinyllm.attention.metadata import AttentionMetadata
from tinyllm.attention.paged import PagedAttention
from tinyllm.errors import ConfigError
from tinyllm.native.library import NativeUnavailableError

FITTING = replace(SPEC, head_dim=32)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 150), st.integers(1, 40)), min_size=1, max_size=6),
    block_size=st.sampled_from([16, 32, 64]),
    num_heads=st.sampled_from([2, 4, 6, 16]),
    head_dim=st.sampled_from([16, 32, 64, 80, 128, 256]),
    dtypes=st.sampled_from(
        [
            (torch.float32, torch.float32, 1e-5),
            (torch.bfloat16, torch.bfloat16, 2e-2),
            (torch.bfloat16, torch.float32, 2e-2),
            (torch.float32, torch.bfloat16, 1e-5),
            (torch.float16, torch.float32, 2e-3),
        ]
    ),
    seed=st.integers(0, 1000),
)
def test_against_float64(
    lengths: list[tuple[int, int]],
    block_size: int,
    num_heads: int,
    head_dim: int,
    dtypes: tuple[torch.dtype, torch.dtype, float],
    seed: int,
) -> None:
    dtype, kv_dtype, tolerance = dtypes
    spec = replace(SPEC, block_size=block_size, head_dim=head_dim, dtype=kv_dtype)
    assert_is_exact(PagedAttention(), spec, lengths, num_heads, dtype, tolerance, seed)


def test_long_sequences_are_merged_from_parts() -> None:
    lengths = [(1023, 1), (500, 30), (1000, 100), (0, 513), (511, 1), (512, 1)]
    assert_is_exact(PagedAttention(), FITTING, lengths, 4, torch.float32, 1e-5, seed=3)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [1, 2, 15, 63, 64, 65, 130, 513])
def test_what_a_block_held_before_does_not_matter(
    length: int, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    backend, spec = PagedAttention(), replace(FITTING, dtype=kv_dtype)
    num_blocks = -(-length // spec.block_size)
    metadata = backend.build_metadata(spec, [0, length], [length], [list(range(num_blocks))])
    generator = torch.Generator().manual_seed(length)
    shape = (length, spec.num_kv_heads, spec.head_dim)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype) for _ in range(3))
    results = []
    for before in (0.0, float("nan"), float("inf")):
        (cache,) = backend.allocate(spec, num_blocks)[:1]
        cache.fill_(before)
        results.append(backend.forward(q, k, v, cache, metadata, 0.2))
    assert results[0].isfinite().all()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_rows_of_another_layout_are_read_as_they_are() -> None:
    """q, k and v are often slices of one product."""
    backend, (cache,) = PagedAttention(), PagedAttention().allocate(FITTING, 2)
    metadata = backend.build_metadata(FITTING, [0, 20], [20], [[1, 0]])
    heads = torch.randn(20, 8, 32)
    q, k, v = torch.split(heads, [4, 2, 2], dim=1)
    sliced = backend.forward(q, k, v, cache, metadata, 0.2)
    whole = backend.forward(q.contiguous(), k.contiguous(), v.contiguous(), cache, metadata, 0.2)
    assert torch.equal(sliced, whole)
    odd = torch.randn(20, 32, 4).transpose(1, 2)  # heads are not side by side
    assert torch.equal(
        backend.forward(odd, k, v, cache, metadata, 0.2),
        backend.forward(odd.contiguous(), k, v, cache, metadata, 0.2),
    )


def test_bytes_per_block_is_what_is_allocated() -> None:
    spec = replace(FITTING, num_layers=3, dtype=torch.bfloat16)
    caches = PagedAttention().allocate(spec, num_blocks=5)
    assert sum(cache.nbytes for cache in caches) == 5 * PagedAttention().bytes_per_block(spec)
    assert all(not cache.any() for cache in caches)


def test_metadata_of_another_backend_is_refused() -> None:
    metadata = AttentionMetadata([0, 1], [1], [[0]], torch.tensor([0]))
    x = torch.zeros(1, 2, 32)
    with pytest.raises(TypeError, match="build_metadata"):
        PagedAttention().forward(x, x, x, PagedAttention().allocate(FITTING, 1)[0], metadata, 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"block_size": 8}, "block_size"),
        ({"head_dim": 20}, "head_dim"),
        ({"head_dim": 512}, "head_dim"),
        ({"dtype": torch.float16}, "float16"),
        ({"device": torch.device("meta")}, "meta"),
    ],
)
def test_what_it_cannot_do_is_left_to_the_reference(change: dict[str, object], reason: str) -> None:
    spec = replace(FITTING, **change)  # type: ignore[arg-type]
    assert get_backend("auto", spec).name == "reference"
    with pytest.raises(ConfigError, match=reason):
        get_backend("paged", spec)


def test_it_is_the_fastest_where_it_works() -> None:
    assert get_backend("auto", FITTING).name == "paged"


def test_without_a_compiler_the_reference_is_used_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler() -> PagedAttention:
        raise NativeUnavailableError("no C compiler")

    monkeypatch.setitem(backends.BACKENDS, "paged", no_compiler)
    with caplog.at_level(logging.WARNING, "tinyllm.attention"):
        assert get_backend("auto", FITTING).name == "reference"
    assert "no C compiler" in caplog.text


def test_one_that_computes_nonsense_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedAttention, "_attend_to", lambda self, q, *_: q.clone())
    assert get_backend("auto", FITTING).name == "reference"
