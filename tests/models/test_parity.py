"""The same numbers and tokens as `transformers`, an implementation that shares no code with this one.

Measure of logits: the largest difference over the largest value, ``max|a - b| / max|b|``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.models.support import CPU, Batch, alone, load, random_ids
from tinyllm.artifacts.gguf import open_gguf
from tinyllm.attention.backends import BACKENDS
from tinyllm.attention.paged import PagedAttention
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.loader import load_model
from tinyllm.runner.reference import generate_reference
from tinyllm.text.tokenizer import load_tokenizer

transformers = pytest.importorskip("transformers")

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 8e-3}
"""In bfloat16 transformers itself is up to 2.7e-2 away from its own float32 on these models."""

CHECKPOINTS = ["tiny_llama", "tiny_qwen2", "tiny_qwen3", pytest.param("smollm2", marks=pytest.mark.weights)]

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Q: What is 17 + 25?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of thermodynamics are",
    "import torch\n\nclass Linear(",
    "1, 1, 2, 3, 5, 8,",
    "Translate to German: good morning ->",
    "In 1969, Neil Armstrong",
    '{"name": "Ada", "age":',
    "A recipe for pancakes: first,",
    "Water boils at",
    "<html>\n<head>\n<title>",
    "Shakespeare wrote many plays, among them",
    "SELECT name FROM users WHERE",
    "The largest planet of the solar system",
    "To be, or not to be,",
    "Photosynthesis is the process by which",
    "猫は",
    "🙂🙂🙂 means",
]


def transformers_model(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


@torch.inference_mode()
def all_logits(model: CausalLM, token_ids: list[int]) -> torch.Tensor:
    return model.compute_logits(alone(model, token_ids))


@torch.inference_mode()
def transformers_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0].float()
    return logits


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_logits(checkpoint: str, dtype: torch.dtype, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(checkpoint)
    theirs = transformers_model(path, dtype)
    for backend in BACKENDS.values():
        ours = load(path, dtype, backend())
        if ours.backend.cannot_run(ours.kv_cache_spec(16)):
            continue
        for length in (1, 7, 100):
            token_ids = random_ids(ours.config, length, seed=length)
            found = distance(all_logits(ours, token_ids), transformers_logits(theirs, token_ids))
            assert found < TOLERANCE[dtype], ours.backend.name


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_bfloat16_is_as_near_to_float32_as_theirs(checkpoint: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(checkpoint)
    ours = load(path, torch.bfloat16)
    token_ids = random_ids(ours.config, 300, seed=1)
    exact = transformers_logits(transformers_model(path), token_ids)
    theirs = transformers_logits(transformers_model(path, torch.bfloat16), token_ids)
    error = (all_logits(ours, token_ids) - exact).square().mean()
    assert error < 1.2 * (theirs - exact).square().mean()


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_greedy_ids_in_float32(checkpoint: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(checkpoint)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    expected = transformers_greedy(transformers_model(path), prompts, max_tokens=64)
    model = load(path)
    assert greedy_in_one_batch(model, prompts, max_tokens=64) == expected
    assert greedy_in_one_batch(load(path, backend=PagedAttention()), prompts, max_tokens=64) == expected
    for prompt, theirs in list(zip(prompts, expected, strict=True))[:3]:
        assert list(generate_reference(model, prompt, max_tokens=64)) == theirs


@pytest.mark.weights
@pytest.mark.slow
def test_a_gguf_read_directly_is_what_transformers_reads(smollm2_gguf: Path) -> None:
    where = {"pretrained_model_name_or_path": smollm2_gguf.parent, "gguf_file": smollm2_gguf.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    artifacts = open_gguf(smollm2_gguf)
    assert artifacts.tokenizer is not None
    tokenizer = load_tokenizer(artifacts.tokenizer)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    assert prompts == [their_tokenizer(text).input_ids for text in PROMPTS]

    ours = load_model(artifacts, dtype=torch.float32, device=CPU, backend=PagedAttention())
    for prompt in prompts:
        assert distance(all_logits(ours, prompt), transformers_logits(theirs, prompt)) < 1e-4
    expected = transformers_greedy(theirs, prompts, max_tokens=64)
    assert greedy_in_one_batch(ours, prompts, max_tokens=64) == expected


def greedy_in_one_batch(model: CausalLM, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """All prompts at once; test_invariance.py holds that this is what each gets alone."""
    batch = Batch(model, prompts, room=max_tokens)
    counts = {i: len(prompt) for i, prompt in enumerate(prompts)}
    for _ in range(max_tokens):
        batch.step(counts)
        last = torch.stack([sequence.rows[-1][-1] for sequence in batch.sequences])
        for sequence, token in zip(
            batch.sequences, model.compute_logits(last).argmax(-1).tolist(), strict=True
        ):
            sequence.token_ids.append(token)
        counts = dict.fromkeys(counts, 1)
    return [s.token_ids[len(prompt) :] for s, prompt in zip(batch.sequences, prompts, strict=True)]


def transformers_greedy(model: Any, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Their own `generate`, in one batch padded on the left, EOS ignored."""
    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts])
    config = transformers.GenerationConfig(
        max_new_tokens=max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    model.generation_config = config
    with torch.inference_mode():
        output = model.generate(padded, attention_mask=mask, generation_config=config)
    generated: list[list[int]] = output[:, longest:].tolist()
    return generated


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn, every option": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.9,
        "truncate": False,
    },
    "yarn, attention factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
}

SHAPE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def assert_same_logits(config: Any, tmp_path: Path) -> None:
    """Write a random model of this config as transformers does, load it, and compare far into its context."""
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias") or "norm" in name:  # transformers starts these at 0 and 1
                parameter.add_(torch.randn_like(parameter) / 4)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    token_ids = random_ids(ours.config, 400, seed=2)
    assert distance(all_logits(ours, token_ids), transformers_logits(theirs, token_ids)) < 1e-5


@pytest.mark.parametrize("rope", ROPES)
def test_every_kind_of_rope(rope: str, tmp_path: Path) -> None:
    parameters = {"rope_theta": 10_000.0, **ROPES[rope]}
    assert_same_logits(transformers.LlamaConfig(**SHAPE, rope_parameters=parameters), tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"attention_bias": True, "mlp_bias": True},
        {"tie_word_embeddings": True},
        {"head_dim": 20},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"rms_norm_eps": 0.1},
    ],
    ids=str,
)
def test_every_option_of_llama(options: dict[str, Any], tmp_path: Path) -> None:
    assert_same_logits(transformers.LlamaConfig(**{**SHAPE, **options}), tmp_path)


@pytest.mark.parametrize("tied", [False, True])
def test_qwen2(tied: bool, tmp_path: Path) -> None:
    assert_same_logits(transformers.Qwen2Config(**SHAPE, tie_word_embeddings=tied), tmp_path)


@pytest.mark.parametrize("options", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}], ids=str)
def test_qwen3(options: dict[str, Any], tmp_path: Path) -> None:
    assert_same_logits(transformers.Qwen3Config(**SHAPE, head_dim=24, **options), tmp_path)


def test_a_batch_gives_each_sequence_what_transformers_gives_it_alone(tiny_llama: Path) -> None:
    ours, theirs = load(tiny_llama), transformers_model(tiny_llama)
    prompts = [random_ids(ours.config, length, seed=length) for length in (3, 40, 17)]
    batch = Batch(ours, prompts)
    batch.step({2: 9, 0: 3, 1: 1})
    batch.step({1: 39, 2: 8})
    for sequence, prompt in zip(batch.sequences, prompts, strict=True):
        assert distance(ours.compute_logits(sequence.hidden), transformers_logits(theirs, prompt)) < 1e-5
