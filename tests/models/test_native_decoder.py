"""All layers in one call to C give what the layers give one by one, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from tests.models.support import CONFIG, CPU, Batch, qwen3_config, random_ids, random_model
from tinyllm.artifacts.model import ModelConfig
from tinyllm.attention.metadata import AttentionMetadata
from tinyllm.attention.paged import PagedAttention
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.models import onednn
from tinyllm.models.layers import DecoderLayer
from tinyllm.models.linear import can_pack
from tinyllm.models.native_decoder import NativeDecoder
from tinyllm.native.library import NativeUnavailableError


def make_backend() -> PagedAttention:
    try:
        return PagedAttention()
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def shaped(config: ModelConfig, **changes: Any) -> ModelConfig:
    """Give heads of a size that the paged kernel takes; the rest stays odd."""
    return replace(config, head_dim=16, **changes)


CONFIGS = {
    "llama": shaped(CONFIG),
    "biases": shaped(CONFIG, attention_bias=True, attention_output_bias=True, mlp_bias=True),
    "qwen2": shaped(CONFIG, architecture="Qwen2ForCausalLM", attention_bias=True),
    "qwen3": shaped(qwen3_config()),
}


@pytest.mark.parametrize("kv_dtype", [None, torch.float32], ids=["same-kv", "float32-kv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_the_layers(name: str, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> None:
    if not can_pack(dtype, CPU):
        pytest.skip("not packed on this CPU")
    model = random_model(CONFIGS[name], dtype, make_backend())
    native = model.native
    assert native is not None
    results = []
    for decoder in (native, None):
        model.native = decoder
        token_ids = [random_ids(model.config, length, seed=length) for length in (1, 5, 70, 33)]
        batch = Batch(model, token_ids, block_size=16, kv_cache_dtype=kv_dtype)
        for counts in ({0: 1}, {1: 4}, {1: 1, 2: 69, 3: 32}, {2: 1, 3: 1}):
            batch.step(counts)
        hidden = torch.cat([sequence.hidden for sequence in batch.sequences])
        logits = [model.compute_logits(hidden[:rows]) for rows in (1, 2, 7, len(hidden))]
        results.append([hidden, *logits])
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.isfinite(ours).all()
        assert torch.equal(ours, theirs)


def test_only_where_every_operator_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    make_backend()
    assert random_model(CONFIGS["llama"], backend=ReferenceBackend()).native is None
    assert random_model(CONFIGS["llama"], torch.float64, ReferenceBackend()).native is None
    monkeypatch.setitem(onednn._BRGEMM, torch.float32, "no_such_function")
    assert random_model(CONFIGS["llama"], backend=make_backend()).native is None


def test_metadata_of_another_backend_is_refused() -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    assert model.native is not None
    metadata = AttentionMetadata((0, 1), (1,), ((0,),), torch.zeros(1, dtype=torch.int64))
    zero = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(TypeError, match="paged"):
        model.native(zero, zero, [], metadata)


@pytest.mark.parametrize(("token_id", "position"), [(199, 0), (-1, 0), (0, 4096), (0, -1)])
def test_out_of_range_is_refused(token_id: int, position: int) -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    spec = model.kv_cache_spec(16)
    metadata = model.backend.build_metadata(spec, (0, 1), (1,), ((0,),))
    with pytest.raises(IndexError, match="out of range"):
        model(torch.tensor([token_id]), torch.tensor([position]), model.backend.allocate(spec, 1), metadata)


def test_what_does_not_fit_is_refused() -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    spec = model.kv_cache_spec(16)
    metadata = model.backend.build_metadata(spec, (0, 1), (1,), ((0,),))
    one, two = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    for token_ids, positions in ((two, one), (one, two), (two, two)):
        with pytest.raises(ValueError, match="numbers of tokens"):
            model(token_ids, positions, model.backend.allocate(spec, 1), metadata)
    for hidden in (torch.zeros(1, 61), torch.zeros(1, 60, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="60 columns"):
            model.compute_logits(hidden)


@pytest.mark.parametrize("change", ["dtype", "stride"])
def test_ids_of_another_layout_are_refused(change: str) -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    spec = model.kv_cache_spec(16)
    metadata = model.backend.build_metadata(spec, (0, 2), (2,), ((0,),))
    ids = torch.zeros(4, dtype=torch.int64)
    odd = ids[:2].int() if change == "dtype" else ids[::2]
    for token_ids, positions in ((odd, ids[:2]), (ids[:2], odd)):
        with pytest.raises(ValueError, match="contiguous int64"):
            model(token_ids, positions, model.backend.allocate(spec, 1), metadata)


def test_the_caches_of_now_are_used() -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    spec = model.kv_cache_spec(16)
    caches = model.backend.allocate(spec, 1)
    metadata = model.backend.build_metadata(spec, (0, 1), (1,), ((0,),))
    one, zero = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    model(one, zero, caches, metadata)
    old = [*caches]
    written = [cache.clone() for cache in old]
    caches[:] = model.backend.allocate(spec, 1)  # other memory in the same list
    model(one + 1, zero, caches, metadata)
    assert all(map(torch.equal, old, written))
    assert all(cache.any() for cache in caches)
    for _ in range(2):
        with pytest.raises(ValueError, match="zip"):
            model(one, zero, caches[:1], metadata)


def test_make_says_none_for_layers_that_are_multiplied_otherwise() -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    layer = cast(DecoderLayer, model.model.layers[0])
    layer.self_attn.o_proj.onednn = None
    assert (
        NativeDecoder.make(model.model.embed_tokens, [layer], model.model.norm, model.lm_head, model.rotary)
        is None
    )


def test_switching_onednn_off_is_an_error_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(CONFIGS["llama"], backend=make_backend())
    batch = Batch(model, [random_ids(model.config, 2, seed=1)], block_size=16)
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        with pytest.raises(RuntimeError, match="switched off"):
            batch.step({0: 2})
        with pytest.raises(RuntimeError, match="switched off"):
            model.compute_logits(torch.zeros(1, 60))
    batch.step({0: 2})


@pytest.mark.weights
def test_leaving_in_the_middle_of_a_step_is_no_crash(smollm2: Path) -> None:
    """The interpreter may leave while an engine's thread is in C: what it uses there must still be there."""
    make_backend()
    code = f"""
import asyncio
from tinyllm import AsyncEngine, EngineConfig, SamplingParams

async def main():
    global engine, streams
    engine = AsyncEngine(EngineConfig(model={str(smollm2)!r}, progress=False, kv_cache_bytes=200_000_000))
    await engine.start()
    long = SamplingParams(max_tokens=900, ignore_eos=True)
    streams = [engine.generate([i + 3] * 3, long) for i in range(8)]
    await anext(streams[0])
    await asyncio.sleep(0.2)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("num_tokens", [1, 2, 17])
def test_what_rows_beyond_the_tokens_hold_goes_nowhere(num_tokens: int) -> None:
    """A single row is multiplied with the one behind it, which is of some step before."""
    results = []
    for stale in (0.0, float("nan"), float("inf")):
        model = random_model(CONFIGS["llama"], backend=make_backend())
        assert model.native is not None
        model.native._reserve(64)
        for workspace in model.native._workspaces:
            workspace.fill_(stale)
        batch = Batch(model, [random_ids(model.config, num_tokens, seed=17)], block_size=16)
        batch.step({0: num_tokens})
        (sequence,) = batch.sequences
        results.append([sequence.hidden, model.compute_logits(sequence.hidden)])
    for others in results[1:]:
        assert all(map(torch.equal, results[0], others))
