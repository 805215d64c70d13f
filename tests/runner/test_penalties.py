"""Penalties against a plain reading of their definition, and repetition against transformers'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runner.fakes import CPU, make_request
from tinyllm.core.request import Request
from tinyllm.runner.penalties import penalties

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB + 2), min_size=1, max_size=30)  # some are padding ids


def by_definition(logits: list[float], request: Request) -> np.ndarray:
    """Compute the penalised logits one token after the other, in float64."""
    params, output = request.params, request.output_token_ids
    result = np.array(logits, dtype=np.float64)
    assert params.repetition_penalty is not None
    for token in range(VOCAB):
        count = output.count(token)
        if token in request.token_ids:
            positive = result[token] > 0
            result[token] *= 1 / params.repetition_penalty if positive else params.repetition_penalty
        result[token] -= params.frequency_penalty * count
        result[token] -= params.presence_penalty * (count > 0)
    return result


@settings(max_examples=100, deadline=None)
@given(
    prompt=TOKENS,
    output=TOKENS,
    first=st.integers(0, 30),
    repetition=st.floats(0.25, 4),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    seed=st.integers(0, 1000),
)
def test_as_defined_however_the_output_grew(
    prompt: list[int],
    output: list[int],
    first: int,
    repetition: float,
    frequency: float,
    presence: float,
    seed: int,
) -> None:
    options: dict[str, Any] = {
        "repetition_penalty": repetition,
        "frequency_penalty": frequency,
        "presence_penalty": presence,
    }
    request = make_request(prompt=prompt, output=output[:first], **options)
    edit = penalties(request, VOCAB, CPU)
    if edit is None:
        assert (repetition, frequency, presence) == (1, 0, 0)
        return
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 5
    edit(logits.clone(), request)  # a step that has seen only the first part
    request.token_ids += output[first:]
    result = logits.clone()
    edit(result, request)
    np.testing.assert_allclose(result.numpy(), by_definition(logits.tolist(), request), rtol=1e-5, atol=1e-5)


def test_many_different_tokens() -> None:
    request = make_request(
        prompt=range(700), output=range(600, 1300), presence_penalty=1.0, repetition_penalty=2.0
    )
    edit = penalties(request, 2000, CPU)
    assert edit is not None
    logits = torch.full((2000,), 8.0)
    edit(logits, request)
    assert logits.tolist() == [4.0] * 600 + [3.0] * 700 + [8.0] * 700


def test_repetition_is_that_of_transformers() -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    request = make_request(prompt=[3, 5, 5], output=[7, 9, 3], repetition_penalty=1.3)
    edit = penalties(request, 500, CPU)
    assert edit is not None
    logits = torch.randn(500, generator=torch.Generator().manual_seed(2))
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([request.token_ids]), logits[None].clone())[
        0
    ]
    edit(logits, request)
    torch.testing.assert_close(logits, expected, rtol=1e-6, atol=0)


def test_tokens_that_are_out_stay_out() -> None:
    request = make_request(output=[4], repetition_penalty=0.5, presence_penalty=-2.0, frequency_penalty=-2.0)
    edit = penalties(request, 10, CPU)
    assert edit is not None
    logits = torch.full((10,), -torch.inf)
    edit(logits, request)
    assert logits.tolist() == [-torch.inf] * 10


def test_off_is_nothing() -> None:
    assert penalties(make_request(), 10, CPU) is None


@pytest.mark.parametrize("length", [100, 100_000])
def test_a_step_looks_at_its_new_tokens_only(length: int) -> None:
    class Counted(list[int]):
        looked_at = 0

        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            result = super().__getitem__(key)
            type(self).looked_at += len(result) if isinstance(key, slice) else 1
            return result

    request = make_request(prompt=[1] * length, presence_penalty=1.0)
    edit = penalties(request, 10, CPU)
    assert edit is not None
    edit(torch.zeros(10), request)
    request.token_ids = Counted([*request.token_ids, 5])
    edit(torch.zeros(10), request)
    assert Counted.looked_at == 1
