"""Logits processors: what they get, what they may do, and that a faulty one fails alone."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

from tests.runner.fakes import CPU, make_request
from tinyllm.core.request import Request
from tinyllm.errors import RequestFailedError
from tinyllm.runner.hooks import logits_processors


def run(*hooks: Any, request: Request | None = None) -> torch.Tensor:
    request = request or make_request(logits_processors=hooks)
    edit = logits_processors(request, 10, CPU)
    assert edit is not None
    logits = torch.arange(10.0)
    edit(logits, request)
    return logits


def test_off_is_nothing() -> None:
    assert logits_processors(make_request(), 10, CPU) is None


def test_hooks_get_prompt_and_output_and_run_in_order() -> None:
    seen: list[list[int]] = []

    def double(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(token_ids)
        return logits * 2

    def add_one_in_place(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits += 1
        return logits

    request = make_request(prompt=[1, 2], output=[3], logits_processors=(double, add_one_in_place))
    assert run(request=request).tolist() == [2 * i + 1 for i in range(10)]
    assert seen == [[1, 2, 3]]


def test_a_hook_cannot_change_the_request_or_keep_the_row() -> None:
    rows: list[torch.Tensor] = []

    def greedy_for_more(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        token_ids.clear()
        rows.append(logits)
        return torch.zeros(10)

    request = make_request(logits_processors=(greedy_for_more,))
    assert run(request=request).tolist() == [0.0] * 10
    assert request.token_ids == [1, 2, 3]
    assert rows[0].tolist() == list(range(10))


class RustPanic(BaseException):
    """Bindings to Rust raise a panic as a BaseException."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        RustPanic(),
        asyncio.CancelledError(),
        GeneratorExit(),
        StopIteration(),
        KeyboardInterrupt(),
        SystemExit(3),
    ],
)
def test_what_a_hook_raises_is_a_fault_of_its_request(error: BaseException) -> None:
    def faulty(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(RequestFailedError, match=rf"faulty raised {type(error).__name__}") as caught:
        run(faulty)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)])
def test_a_faulty_hook_that_has_no_name_is_contained_too(error: BaseException) -> None:
    class Nameless:
        def __call__(self, token_ids: list[int], logits: torch.Tensor) -> None:
            return None

        def __getattr__(self, name: str) -> object:
            raise error

    with pytest.raises(RequestFailedError, match="returned NoneType"):
        run(Nameless())


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (None, "returned NoneType"),
        ([0.0] * 10, "returned list"),
        (torch.zeros(9), r"returned shape \[9\]"),
        (torch.zeros(1, 10), r"returned shape \[1, 10\]"),
        (torch.zeros(10, dtype=torch.float64), "returned torch.float64 on cpu"),
        (torch.zeros(10, dtype=torch.int64), "returned torch.int64 on cpu"),
        (torch.zeros(10, device="meta"), "returned torch.float32 on meta"),
        (torch.full((10,), math.nan), "returned NaN"),
        (torch.tensor([math.nan] + [0.0] * 9), "returned NaN"),
        (torch.tensor([math.inf] + [0.0] * 9), r"returned NaN or \+inf"),
        (torch.full((10,), -math.inf), "returned -inf for every token"),
        (torch.zeros(10).to_sparse(), "raised"),
    ],
)
def test_a_result_that_cannot_be_sampled_from_is_named(result: Any, fault: str) -> None:
    with pytest.raises(RequestFailedError, match=fault):
        run(lambda token_ids, logits: result)
