"""The sampler as a whole: its order, its faults, and that batch mates do not matter."""

from __future__ import annotations

import gc
import math
from typing import Any

import pytest
import torch

from tests.runner.fakes import CPU, make_request
from tinyllm.core.request import Request
from tinyllm.core.step import SampledToken
from tinyllm.errors import NoTokenLeftError, RequestFailedError
from tinyllm.runner.sampler import Sampler

VOCAB = 1000


def random_logits(rows: int, width: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def sample(logits: torch.Tensor, *requests: Request, vocab_size: int = VOCAB) -> list[SampledToken]:
    return Sampler(vocab_size, CPU).sample(logits.clone(), requests)


def tokens(logits: torch.Tensor, *requests: Request) -> list[int]:
    results = sample(logits, *requests)
    assert [each.error for each in results] == [None] * len(requests)
    return [each.token_id for each in results]


def generate(sampler: Sampler, logits: torch.Tensor, *requests: Request) -> list[list[int]]:
    """Sample a row of ``logits [steps, VOCAB]`` at each step, the same for each request."""
    for row in logits:
        for request, result in zip(
            requests, sampler.sample(row.repeat(len(requests), 1), requests), strict=True
        ):
            assert result.error is None
            request.token_ids.append(result.token_id)
    return [request.output_token_ids for request in requests]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, [7, 300]] = 1.0
    assert tokens(logits, make_request("a"), make_request("b")) == [7, 0]
    assert tokens(logits, *(make_request(n, temperature=1.0, top_k=1) for n in "ab")) == [7, 0]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3}])
@pytest.mark.parametrize("known", [1, 4, 1000])
def test_padding_ids_are_never_sampled(options: dict[str, Any], known: int) -> None:
    logits = torch.zeros(50, 1024)
    logits[:, known:] = 50.0
    requests = [make_request(str(row), seed=row, **options) for row in range(50)]
    assert max(each.token_id for each in sample(logits, *requests, vocab_size=known)) < known


def test_a_hook_sees_only_the_tokenizer_s_ids() -> None:
    shapes = []

    def look(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(logits.shape))
        return logits

    sample(torch.zeros(1, 1024), make_request(logits_processors=(look,)))
    assert shapes == [(VOCAB,)]


# The order in which options act.


def test_hooks_come_first_and_cannot_bring_back_what_is_forbidden() -> None:
    def favour(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[:3] = torch.tensor([50.0, 40.0, 30.0])
        return logits

    request = make_request(
        logits_processors=(favour,), allowed_token_ids=[0, 1, 2], bad_words=((1,),), eos=(0,), min_tokens=1
    )
    assert tokens(torch.zeros(1, VOCAB), request) == [2]


def test_biases_come_before_penalties() -> None:
    logits = torch.full((1, VOCAB), -50.0)
    logits[0, :2] = torch.tensor([1.0, 2.5])
    biased: dict[str, Any] = {"logit_bias": {"0": 5.0}, "repetition_penalty": 2.0}
    assert tokens(logits, make_request(output=[0], prompt=[9], **biased)) == [
        0
    ]  # (1 + 5) / 2 beats 2.5; 1 / 2 + 5 too
    biased = {"logit_bias": {"0": 3.0}, "repetition_penalty": 2.0}
    assert tokens(logits, make_request(output=[0], prompt=[9], **biased)) == [1]  # (1 + 3) / 2; not 1 / 2 + 3


def test_scores_are_of_the_model_s_own_logits() -> None:
    logits = random_logits(1)
    expected = logits.double().log_softmax(-1)[0]
    request = make_request(
        logprobs=2,
        temperature=0.5,
        seed=1,
        logit_bias={"5": 100.0},
        repetition_penalty=1.5,
        logits_processors=(lambda token_ids, row: row * 0,),
    )
    (result,) = sample(logits, request)
    assert result.token_id == 5
    assert result.scores is not None
    assert result.scores.token_id == 5
    assert result.scores.logprob == pytest.approx(expected[5].item(), abs=1e-5)
    assert [token for token, _ in result.scores.top] == expected.topk(2).indices.tolist()


def test_scores_are_there_for_those_who_ask() -> None:
    results = sample(
        random_logits(3), make_request("a"), make_request("b", logprobs=0), make_request("c", logprobs=20)
    )
    assert [None if each.scores is None else len(each.scores.top) for each in results] == [None, 0, 20]


def test_d30_top_k_one_has_finite_scores_of_all_alternatives() -> None:
    (result,) = sample(random_logits(1), make_request(temperature=1.0, top_k=1, logprobs=5))
    assert result.scores is not None
    assert all(math.isfinite(logprob) for _, logprob in result.scores.top)
    assert result.scores.top[0] == (result.token_id, result.scores.logprob)


def test_a_padding_id_keeps_its_share_of_the_probability() -> None:
    logits = torch.zeros(1, 1024)
    (result,) = sample(logits, make_request(logprobs=0))
    assert result.scores is not None
    assert result.scores.logprob == pytest.approx(-math.log(1024))


# Ends.


@pytest.mark.parametrize("favourite", [0, 2])
def test_d18_no_end_of_sequence_in_the_first_four(favourite: int) -> None:
    logits = torch.zeros(6, VOCAB)
    logits[:, [favourite, 2 - favourite]] = torch.tensor([50.0, 40.0])
    (output,) = generate(Sampler(VOCAB, CPU), logits, make_request(prompt=[1] * 50, eos=(0, 2), min_tokens=4))
    assert not {0, 2} & set(output[:4])
    assert output[4] == favourite


# Seeds.


def test_d28_d29_a_seed_decides_whatever_else_is_in_the_batch() -> None:
    logits = random_logits(12, seed=4)

    def seeded(name: str, seed: int = 42, index: int = 0) -> Request:
        return make_request(name, temperature=1.0, seed=seed, index=index)

    (alone,) = generate(Sampler(VOCAB, CPU), logits, seeded("a"))
    for _ in range(4):
        unseeded = make_request("u", temperature=1.0)
        other, same, mate = generate(Sampler(VOCAB, CPU), logits, unseeded, seeded("b"), seeded("c", seed=43))
        assert same == alone
        assert alone not in (other, mate)
    five = generate(Sampler(VOCAB, CPU), logits, *(seeded(str(seed), seed=seed) for seed in range(5)))
    assert len({tuple(each) for each in five}) == 5
    choices = generate(Sampler(VOCAB, CPU), logits, *(seeded(str(index), index=index) for index in range(3)))
    assert choices[0] == alone
    assert len({tuple(each) for each in choices}) == 3


def test_requests_without_a_seed_differ_and_keep_theirs() -> None:
    logits = random_logits(12, seed=5)
    sampler = Sampler(VOCAB, CPU)
    requests = [make_request(name, temperature=1.0) for name in "abc"]
    outputs = generate(sampler, logits, *requests)
    assert len({tuple(each) for each in outputs}) == 3
    for request in requests:  # as after a preemption that lost the output
        del request.token_ids[request.num_prompt_tokens :]
    assert generate(sampler, logits, *reversed(requests)) == outputs[::-1]


def test_state_is_dropped_with_the_request() -> None:
    sampler = Sampler(VOCAB, CPU)
    request = make_request(
        temperature=1.0,
        repetition_penalty=1.1,
        logit_bias={"1": 1.0},
        allowed_token_ids=[1, 2],
        bad_words=((5, 6),),
        min_tokens=2,
        logits_processors=(lambda token_ids, row: row,),
    )
    generate(sampler, random_logits(2), request)
    assert len(sampler._states) == 1
    del request
    gc.collect()
    assert len(sampler._states) == 0


# Faults.


def test_a_fault_of_one_request_leaves_the_others_alone() -> None:
    def faulty(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        logits[:] = math.nan
        raise ValueError

    logits = random_logits(8, seed=6)
    logits[1] = math.nan
    logits[2, 5] = math.nan
    logits[3, 5] = math.inf
    logits[4] = -math.inf
    sound: dict[str, Any] = {"temperature": 1.0, "seed": 3, "logprobs": 1}
    requests = [
        make_request("sound", **sound),
        make_request("all-nan", **sound),
        make_request("one-nan", logprobs=1),
        make_request("inf", **sound),
        make_request("none"),
        make_request("hook", logits_processors=(faulty,), **sound),
        make_request("allowed", allowed_token_ids=[4], bad_words=((4,),), **sound),
        make_request("greedy"),
    ]
    results = sample(logits, *requests)
    for row in (0, 7):
        assert results[row] == sample(logits[row : row + 1], requests[row])[0]
        assert results[row].error is None
    messages = [
        "NaN or infinite",
        "NaN or infinite",
        "NaN or infinite",
        "NaN or infinite",
        "faulty raised ValueError",
        "options leave no token",
    ]
    assert isinstance(results[6].error, NoTokenLeftError)
    for result, message in zip(results[1:7], messages, strict=True):
        assert isinstance(result.error, RequestFailedError)
        assert message in str(result.error)
        assert result.scores is None


def test_only_faults() -> None:
    results = sample(torch.full((2, VOCAB), math.nan), make_request("a"), make_request("b", temperature=1.0))
    assert all(isinstance(each.error, RequestFailedError) for each in results)


def test_overflow_by_a_penalty_is_a_fault() -> None:
    logits = torch.full((1, VOCAB), 1e38)
    (result,) = sample(logits, make_request(output=[5], repetition_penalty=0.01))
    assert isinstance(result.error, RequestFailedError)


# Batches.

MIXED: list[dict[str, Any]] = [
    {},
    {"logprobs": 5},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "logprobs": 2},
    {"temperature": 1.2, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 1.0, "typical_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 0.9, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    {"temperature": 1.0, "logit_bias": {"7": 4.0}, "min_tokens": 3},
    {"temperature": 1.0, "allowed_token_ids": list(range(0, 900, 3))},
    {"temperature": 1.0, "logits_processors": (lambda token_ids, row: row * 1.5,)},
]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_request_alone_and_with_any_mates_gives_the_same_bit_for_bit(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        requests = [
            make_request(str(row), output=[row, 5, row], seed=row, **options)
            for row, options in enumerate(MIXED)
        ]
        logits = random_logits(len(requests), width=40_000, seed=9)
        together = sample(logits, *requests, vocab_size=39_990)
        generator = torch.Generator().manual_seed(1)
        for row, request in enumerate(requests):
            assert sample(logits[row : row + 1], request, vocab_size=39_990) == [together[row]]
        for _ in range(3):
            order = torch.randperm(len(requests), generator=generator)[:6].tolist()
            mixed = sample(logits[order], *(requests[row] for row in order), vocab_size=39_990)
            assert mixed == [together[row] for row in order]
    finally:
        torch.set_num_threads(before)


def test_a_greedy_batch_is_one_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(4)
    requests = [make_request(str(row)) for row in range(4)]
    expected = logits.argmax(dim=-1).tolist()
    called = []
    for name in ("topk", "sort", "exp", "cumsum", "log_softmax", "softmax", "clone", "__getitem__"):
        original = getattr(torch.Tensor, name)

        def spy(
            self: torch.Tensor, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any
        ) -> Any:
            called.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, spy)
    results = Sampler(VOCAB, CPU).sample(logits, requests)
    monkeypatch.undo()
    assert [each.token_id for each in results] == expected
    assert called == ["__getitem__"]  # the vocabulary is cut to the tokenizer's
