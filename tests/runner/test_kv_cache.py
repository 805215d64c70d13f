"""The plan of the KV cache: from bytes, lengths and free memory, and what is said when it is too small."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.runner.fakes import CPU, FakeBackend
from tinyllm.artifacts.model import ModelConfig, RopeConfig
from tinyllm.config import EngineConfig
from tinyllm.errors import ConfigError
from tinyllm.runner import kv_cache
from tinyllm.runner.kv_cache import MAX_BLOCKS, KVCachePlan, log_plan, plan_kv_cache

CONTEXT = 1000
TOKEN = 2 * 3 * 2 * 8 * 4
"""Bytes a token takes: K and V, 3 layers, 2 heads of 8, float32."""
BLOCK = 16 * TOKEN
PLENTY = 10**12

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=CONTEXT,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    attention_bias=False,
    attention_output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    tie_word_embeddings=True,
    dtype="float32",
)


def plan(
    free_bytes: int | None = PLENTY, *, model_config: ModelConfig = MODEL, **options: Any
) -> KVCachePlan:
    return plan_kv_cache(
        EngineConfig(**options),
        model_config,
        backend=FakeBackend(),
        dtype=torch.float32,
        device=CPU,
        free_bytes=free_bytes,
    )


def test_by_default_every_sequence_may_be_as_long_as_the_context() -> None:
    result = plan(max_num_seqs=4)
    assert (result.num_blocks, result.block_size, result.max_model_len) == (4 * 63, 16, CONTEXT)
    assert result.bytes == 4 * 63 * BLOCK
    assert (result.spec.num_layers, result.spec.num_kv_heads, result.spec.head_dim) == (3, 2, 8)


def test_shorter_sequences_need_less() -> None:
    result = plan(max_num_seqs=4, max_model_len=100)
    assert (result.num_blocks, result.max_model_len) == (4 * 7, 100)


def test_a_quarter_of_the_free_memory_at_most() -> None:
    result = plan(free_bytes=4 * 100 * BLOCK + 3, max_num_seqs=4)
    assert (result.num_blocks, result.max_model_len) == (100, CONTEXT)


def test_a_given_size_is_used_whole() -> None:
    assert plan(kv_cache_bytes=200 * BLOCK + 5, max_num_seqs=1).num_blocks == 200


def test_a_smaller_cache_shortens_the_default_length_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        config = EngineConfig(kv_cache_bytes=10 * BLOCK)
        result = plan(kv_cache_bytes=10 * BLOCK)
        log_plan(result, config, CONTEXT)
    assert result.max_model_len == 160
    assert "max_model_len is 160, not the model's context of 1000" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        result = plan(max_model_len=500)
        log_plan(result, EngineConfig(max_model_len=500), CONTEXT)
    assert result.max_model_len == 500
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("name", "dtype", "size"),
    [("auto", torch.float32, 4), ("bfloat16", torch.bfloat16, 2), ("float16", torch.float16, 2)],
)
def test_the_cache_s_own_dtype(name: str, dtype: torch.dtype, size: int) -> None:
    result = plan(kv_cache_dtype=name, kv_cache_bytes=100 * BLOCK)
    assert result.spec.dtype == dtype
    assert result.num_blocks == 100 * 4 // size


@pytest.mark.parametrize("mode", ["paged", "contiguous"])
def test_too_small_says_what_would_do_and_that_does(mode: str) -> None:
    small: dict[str, Any] = {"kv_cache_mode": mode, "max_model_len": 320, "max_num_seqs": 2}
    with pytest.raises(ConfigError, match="the KV cache is too small") as caught:
        plan(kv_cache_bytes=16 * BLOCK, **small)
    message = str(caught.value)
    needed, longest = (
        int(n) for n in re.findall(r"at least (\d+), or max_model_len to at most (\d+)", message)[0]
    )
    assert "kv_cache_bytes is " + str(16 * BLOCK) in message
    assert plan(kv_cache_bytes=needed, **small).max_model_len == 320
    assert plan(kv_cache_bytes=16 * BLOCK, **small | {"max_model_len": longest}).max_model_len == longest
    with pytest.raises(ConfigError):
        plan(kv_cache_bytes=needed - 1, **small)
    with pytest.raises(ConfigError):
        plan(kv_cache_bytes=16 * BLOCK, **small | {"max_model_len": longest + 1})


@pytest.mark.parametrize("mode", ["paged", "contiguous"])
def test_no_room_for_anything(mode: str) -> None:
    with pytest.raises(
        ConfigError, match="a quarter of the free memory is 25; set kv_cache_bytes to at least"
    ):
        plan(free_bytes=100, kv_cache_mode=mode)


def test_more_than_the_context_or_the_memory() -> None:
    with pytest.raises(ConfigError, match="max_model_len: 1001 is more than the model's context, 1000"):
        plan(max_model_len=CONTEXT + 1)
    with pytest.raises(ConfigError, match="kv_cache_bytes: 5000 is more than the 4999 bytes that are free"):
        plan(free_bytes=4999, kv_cache_bytes=5000)


def test_contiguous_is_one_block_a_sequence() -> None:
    result = plan(kv_cache_mode="contiguous", max_num_seqs=5)
    assert (result.num_blocks, result.block_size, result.max_model_len) == (5, 63 * 16, CONTEXT)
    assert result.bytes == 5 * 63 * BLOCK


def test_contiguous_shortens_the_default_length_to_what_fits() -> None:
    result = plan(kv_cache_mode="contiguous", max_num_seqs=5, kv_cache_bytes=5 * 10 * BLOCK + 7)
    assert (result.num_blocks, result.block_size, result.max_model_len) == (5, 160, 160)


def test_free_memory_is_measured_where_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: 4 * 70 * BLOCK)
    assert plan(free_bytes=None, max_num_seqs=4).num_blocks == 70
    monkeypatch.setattr(kv_cache, "free_memory", lambda device: None)
    assert plan(free_bytes=None, max_num_seqs=4).num_blocks == 4 * 63


def test_blocks_have_an_upper_limit(caplog: pytest.LogCaptureFixture) -> None:
    endless = replace(MODEL, max_position_embeddings=2**31)
    result = plan(free_bytes=2**60, model_config=endless)
    assert (result.num_blocks, result.max_model_len) == (MAX_BLOCKS, MAX_BLOCKS * 16)
    log_plan(result, EngineConfig(), 2**31)
    assert "raise block_size for more" in caplog.text
    for options in ({"kv_cache_bytes": (MAX_BLOCKS + 1) * BLOCK}, {"max_model_len": MAX_BLOCKS * 16 + 1}):
        with pytest.raises(ConfigError, match=f"^{next(iter(options))}: .*raise block_size") as caught:
            plan(free_bytes=2**60, model_config=endless, **options)
        (most,) = re.findall(r"to at most (\d+)", str(caught.value))
        fitting = plan(free_bytes=2**60, model_config=endless, **{next(iter(options)): int(most)})
        assert fitting.num_blocks == MAX_BLOCKS
