"""A step of the runner: on a model whose logits are known, and on real ones against the reference loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runner.fakes import PADDED, SPEC, VOCAB, FakeBackend, FakeModel, make_request, schedule
from tinyllm.artifacts.resolve import open_model
from tinyllm.attention.reference import ReferenceBackend
from tinyllm.core.request import Request
from tinyllm.core.step import ScheduledRequest, SchedulerOutput, TokenScores
from tinyllm.errors import RequestFailedError
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.loader import load_model
from tinyllm.runner.model_runner import ModelRunner
from tinyllm.runner.reference import generate_reference


def make_runner(model: FakeModel) -> ModelRunner:
    return ModelRunner(model, FakeBackend(), SPEC, 64, vocab_size=VOCAB, max_num_batched_tokens=8)


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def runner(model: FakeModel) -> ModelRunner:
    return make_runner(model)


def best(model: FakeModel, token: int, position: int) -> int:
    return int(model.logits(token, position)[:VOCAB].argmax())


def test_rows_that_sample_get_logits_and_no_others(runner: ModelRunner, model: FakeModel) -> None:
    decoding = make_request("a", prompt=[4], output=[5])
    chunk = make_request("b", prompt=range(30))
    last = make_request("c", prompt=range(20))
    output = runner.execute_model(schedule((decoding, 1, 1), (chunk, 0, 10), (last, 10, 10)))
    assert {name: each.token_id for name, each in output.sampled.items()} == {
        "a": best(model, 5, 1),
        "c": best(model, 19, 19),
    }
    assert model.logit_rows == 2
    assert output.prompt_scores == {}
    assert set(output.timings) == {"build", "forward", "sample"}
    assert all(seconds >= 0 for seconds in output.timings.values())


def test_a_step_without_samples_computes_no_logits(runner: ModelRunner, model: FakeModel) -> None:
    assert runner.execute_model(schedule((make_request(prompt=range(30)), 0, 8))).sampled == {}
    assert model.logit_rows == 0


def test_nothing_scheduled_is_nothing_done(runner: ModelRunner) -> None:
    output = runner.execute_model(SchedulerOutput())
    assert (output.sampled, output.prompt_scores, output.timings) == ({}, {}, {})


def test_a_tokenizer_with_more_ids_than_the_model(model: FakeModel) -> None:
    runner = ModelRunner(model, FakeBackend(), SPEC, 64, vocab_size=10_000)
    request = make_request(allowed_token_ids=[PADDED - 1, PADDED, 9999])
    assert runner.execute_model(schedule((request, 0, 3))).sampled["r0"].token_id == PADDED - 1


def expected_scores(model: FakeModel, prompt: list[int], num_top: int) -> list[TokenScores]:
    scores = []
    for position, target in enumerate(prompt[1:]):
        logprobs = model.logits(prompt[position], position).log_softmax(-1)
        top = sorted(range(VOCAB), key=lambda i: (-logprobs[i].item(), i))[:num_top]
        scores.append(
            TokenScores(target, logprobs[target].item(), tuple((i, logprobs[i].item()) for i in top))
        )
    return scores


def report(request: Request, start: int, scores: list[TokenScores]) -> list[TokenScores]:
    """Take the scores that are new, as the scheduler does: they are of tokens ``start + 1`` on."""
    new = scores[request.num_prompt_scores - start :]
    request.num_prompt_scores += len(new)
    return new


@pytest.mark.parametrize("chunks", [[150], [1] * 150, [7, 64, 79], [100, 50]])
def test_each_prompt_token_after_the_first_is_scored_once(
    model: FakeModel, runner: ModelRunner, chunks: list[int]
) -> None:
    prompt = [(7 * i) % VOCAB for i in range(150)]
    request = make_request(prompt=prompt, prompt_logprobs=3)
    mate = make_request("mate", output=[6])
    found: list[TokenScores] = []
    start = 0
    for new in chunks:
        output = runner.execute_model(schedule((mate, 3, 1), (request, start, new)))
        found += report(request, start, output.prompt_scores.get("r0", []))
        start += new
    assert found == expected_scores(model, prompt, 3)


def test_each_prompt_token_is_scored_once_after_a_preemption_too(
    model: FakeModel, runner: ModelRunner
) -> None:
    prompt = list(range(20))
    request = make_request(prompt=prompt, prompt_logprobs=0)
    found: list[TokenScores] = []
    for start, new in [(0, 6), (6, 6), (0, 4), (4, 12), (16, 4)]:
        scores = runner.execute_model(schedule((request, start, new))).prompt_scores["r0"]
        found += report(request, start, scores)
    assert found == expected_scores(model, prompt, 0)
    request.token_ids += [5, 6]
    assert runner.execute_model(schedule((request, 0, 22))).prompt_scores == {}


def test_a_prompt_may_hold_a_padding_id(model: FakeModel, runner: ModelRunner) -> None:
    request = make_request(prompt=[1, PADDED - 1, 2], prompt_logprobs=1, max_tokens=0)
    (scores, _) = runner.execute_model(schedule((request, 0, 3))).prompt_scores["r0"]
    assert scores.token_id == PADDED - 1


def test_rows_that_are_nan_fail_their_own_request(model: FakeModel, runner: ModelRunner) -> None:
    model.broken_tokens = {9}
    sound, broken = make_request("sound", prompt=[1, 2]), make_request("broken", prompt=[1, 9])
    prompt_only = make_request("prompt", prompt=[1, 9, 2, 3, 4], prompt_logprobs=1)
    output = runner.execute_model(schedule((sound, 0, 2), (broken, 0, 2), (prompt_only, 0, 4)))
    assert output.sampled["sound"].error is None
    assert output.sampled["sound"].token_id == best(model, 2, 1)
    assert isinstance(output.sampled["broken"].error, RequestFailedError)
    assert isinstance(output.sampled["prompt"].error, RequestFailedError)
    assert output.prompt_scores == {}


def test_a_fault_of_the_model_is_a_fault_of_the_step(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model, "compute_logits", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        make_runner(model).execute_model(schedule((make_request(), 0, 3)))


def test_no_graph_is_kept(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    original = model.compute_logits

    def look(hidden: torch.Tensor) -> torch.Tensor:
        modes.append(torch.is_inference_mode_enabled())
        return original(hidden)

    monkeypatch.setattr(model, "compute_logits", look)
    make_runner(model).execute_model(schedule((make_request(), 0, 3)))
    assert modes == [True]


# Real models: several requests cut into steps at will, against the reference loop for each alone.


class Paged:
    """Runs requests by hand: hands out blocks, schedules chunks, appends what is sampled."""

    def __init__(self, model: CausalLM, block_size: int = 8, num_blocks: int = 64) -> None:
        spec = model.kv_cache_spec(block_size)
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.runner = ModelRunner(
            model,
            model.backend,
            spec,
            num_blocks,
            vocab_size=model.config.vocab_size,
            max_num_batched_tokens=4,
        )

    def step(self, *parts: tuple[Request, int]) -> None:
        """Compute ``(request, num_new_tokens)``."""
        scheduled = []
        for request, new in parts:
            start, end = request.num_computed_tokens, request.num_computed_tokens + new
            table = self.tables.setdefault(request.request_id, [])
            while len(table) * self.block_size < end:
                table.append(self.free.pop(len(self.free) // 2))
            samples = end == request.num_tokens
            scheduled.append(ScheduledRequest(request, start, new, list(table), samples))
        output = self.runner.execute_model(SchedulerOutput(scheduled=scheduled))
        for item in scheduled:
            item.request.num_computed_tokens += item.num_new_tokens
            if item.samples:
                result = output.sampled[item.request.request_id]
                assert result.error is None
                item.request.token_ids.append(result.token_id)

    def preempt(self, request: Request) -> None:
        """Give the blocks back; everything is computed again."""
        self.free += self.tables.pop(request.request_id)
        request.num_computed_tokens = 0


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_qwen2"])
def real_model(request: pytest.FixtureRequest) -> CausalLM:
    device = torch.device("cpu")
    return load_model(
        open_model(str(request.getfixturevalue(request.param))),
        dtype=torch.float32,
        device=device,
        backend=ReferenceBackend(),
    )


PROMPTS = [[5, 900, 77], list(range(100, 137)), [1], list(range(3000, 3016))]
NUM_TOKENS = 10


def greedy_requests() -> list[Request]:
    return [make_request(str(i), prompt=prompt) for i, prompt in enumerate(PROMPTS)]


def test_batched_chunked_and_preempted_is_the_reference(real_model: CausalLM) -> None:
    expected = [list(generate_reference(real_model, prompt, max_tokens=NUM_TOKENS)) for prompt in PROMPTS]
    requests, paged = greedy_requests(), Paged(real_model)
    for step in range(200):
        todo = [each for each in requests if each.num_output_tokens < NUM_TOKENS]
        if not todo:
            break
        if step == 9:
            paged.preempt(requests[1])
        parts = []
        for i, each in enumerate(todo):
            left = each.num_tokens - each.num_computed_tokens
            parts.append((each, min(left, 1 + (3 * i + step) % 7)))
        paged.step(*parts)
    assert [each.output_token_ids for each in requests] == expected


def test_seeded_draws_do_not_depend_on_mates_or_chunks(real_model: CausalLM) -> None:
    def seeded(name: str) -> Request:
        options: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 7}
        return make_request(name, prompt=PROMPTS[1], **options)

    alone, paged = seeded("alone"), Paged(real_model)
    for _ in range(NUM_TOKENS):
        paged.step((alone, alone.num_tokens - alone.num_computed_tokens))
    mate, chunked, paged = greedy_requests()[0], seeded("chunked"), Paged(real_model)
    while chunked.num_output_tokens < NUM_TOKENS:
        left = chunked.num_tokens - chunked.num_computed_tokens
        paged.step((mate, mate.num_tokens - mate.num_computed_tokens), (chunked, min(left, 5)))
    assert chunked.output_token_ids == alone.output_token_ids
