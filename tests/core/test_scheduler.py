"""The rules of service: who gets which part of a step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.harness import EOS, Engine, assert_as_alone, make_engine, make_request
from tinyllm.config import EngineConfig
from tinyllm.core.fair_share import fair_shares, prefill_shares
from tinyllm.core.integrity import IntegrityError
from tinyllm.core.request import Request, RequestStatus, StreamCredit
from tinyllm.core.scheduler import SchedulerConfig
from tinyllm.core.step import ModelRunnerOutput, SampledToken, SchedulerOutput
from tinyllm.errors import ContextLengthError, InvalidRequestError
from tinyllm.params import SamplingParams


def test_options_come_from_the_engine_config() -> None:
    changed: dict[str, Any] = {
        "max_num_seqs": 3,
        "max_num_batched_tokens": 7,
        "max_num_partial_prefills": 2,
        "long_prefill_threshold": 5,
        "max_prefill_slowdown": 6.0,
        "max_step_seconds": 8.0,
        "prefill_mode": "one-shot",
        "max_waiting_requests": 9,
        "max_waiting_tokens": 10,
        "stall_timeout": 11.0,
        "priority_ageing": 12.0,
    }
    config = SchedulerConfig.from_engine_config(EngineConfig(**changed), 99)
    assert config == SchedulerConfig(max_model_len=99, **changed)
    assert SchedulerConfig.from_engine_config(EngineConfig(), 99) == SchedulerConfig(max_model_len=99)


# ---------------------------------------------------------------------- coming and going


def test_one_request_from_start_to_end() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    request = make_request(6, 3)
    engine.add(request)
    assert (engine.scheduler.num_waiting, engine.scheduler.num_waiting_tokens) == (1, 6)
    assert engine.step().tokens == {request.request_id: 4}
    assert (engine.scheduler.num_waiting, engine.scheduler.num_running) == (0, 1)
    assert engine.step().tokens == {request.request_id: 2}
    engine.run()
    assert_as_alone(request)
    assert [len(ran.sampled) for ran in engine.history] == [0, 1, 1, 1]
    assert engine.kv.num_free_blocks == engine.kv.num_blocks
    assert not engine.scheduler.has_work()


def test_what_can_never_fit_is_refused_with_the_numbers_and_the_next_one_runs() -> None:
    """D59."""
    engine = make_engine(num_blocks=4, block_size=4)
    with pytest.raises(
        ContextLengthError, match=r"24 tokens and max_tokens is 1: .* 25, .*KV cache holds 16"
    ):
        engine.add(make_request(24, 1))
    with pytest.raises(ContextLengthError, match="max_tokens is 7"):
        engine.add(make_request(10, 7))
    assert not engine.scheduler.has_work()
    fits = make_request(10, 6)
    engine.add(fits)
    engine.run()
    assert_as_alone(fits)
    with pytest.raises(ContextLengthError, match="context holds 9"):
        make_engine(max_model_len=9).scheduler.check_length(5, 5)
    with pytest.raises(InvalidRequestError, match="no tokens"):
        engine.add(make_request([], 1))


def test_an_id_is_used_once_at_a_time() -> None:
    engine = make_engine()
    engine.add(make_request(request_id="a"))
    with pytest.raises(InvalidRequestError, match="in use"):
        engine.add(make_request(request_id="a"))
    engine.run()
    engine.add(make_request(request_id="a"))


def test_bounds_on_waiting_count_neither_free_seats_nor_a_first_prompt() -> None:
    engine = make_engine(max_num_seqs=2, max_waiting_requests=1, max_waiting_tokens=10)
    accepts = engine.scheduler.can_accept
    assert accepts(3, 100)
    assert not accepts(4, 1)
    engine.add(make_request(4, 50), make_request(4, 50))
    assert accepts(1, 2)
    assert not accepts(1, 3)
    assert not accepts(2, 1)
    engine.step()
    assert accepts(1, 11)
    assert not accepts(2, 1)


@pytest.mark.parametrize("steps", [0, 1, 4, 6])
def test_abort_frees_everything_at_once_in_every_state(steps: int) -> None:
    """D51, D52: queued, in the prompt's second chunk, decoding."""
    engine = make_engine(max_num_batched_tokens=4)
    request = make_request(16, 9)
    engine.add(request)
    for _ in range(steps):
        engine.step()
    assert engine.scheduler.abort(request.request_id) is request
    assert request.status is RequestStatus.FINISHED_ABORTED
    assert engine.kv.num_free_blocks == engine.kv.num_blocks
    assert engine.scheduler.abort(request.request_id) is None
    assert engine.scheduler.abort("never seen") is None
    assert not engine.scheduler.finish(request, RequestStatus.FINISHED_STOPPED)
    assert request.status is RequestStatus.FINISHED_ABORTED
    assert engine.step().output.scheduled == []


def test_results_that_come_after_the_end_are_dropped() -> None:
    """D54: cancelled while the step ran, even if a new request took its id."""
    engine = make_engine()
    first, mate = make_request(4, 1, request_id="a"), make_request(4, 1)
    engine.add(first, mate)
    output = engine.scheduler.schedule()
    result = engine.runner.execute_model(output)
    engine.scheduler.abort("a")
    second = make_request(4, 1, request_id="a")
    engine.add(second)
    updates = engine.scheduler.update_from_output(output, result)
    assert [update.request for update in updates] == [mate]
    assert first.output_token_ids == []
    assert second.status is RequestStatus.WAITING
    engine.run()
    assert_as_alone(second, mate)


def test_the_engine_ends_a_request_at_a_stop_string() -> None:
    engine = make_engine()
    request = make_request(4, 9)
    engine.add(request)
    engine.step()
    assert engine.scheduler.finish(request, RequestStatus.FINISHED_STOPPED)
    assert engine.kv.num_free_blocks == engine.kv.num_blocks
    assert not engine.scheduler.has_work()


# ---------------------------------------------------------------------- endings


def ended_by(request: Request, *token_ids: int) -> tuple[RequestStatus, int | None, list[int]]:
    """Let the model sample these tokens; return how the request stands after them."""
    engine = make_engine()
    engine.add(request)
    stop_reason = None
    for token_id in token_ids:
        output = engine.scheduler.schedule()
        sampled = {request.request_id: SampledToken(token_id)} if output.scheduled else {}
        for update in engine.scheduler.update_from_output(output, ModelRunnerOutput(sampled)):
            stop_reason = update.stop_reason
    return request.status, stop_reason, request.output_token_ids


STOPPED, LENGTH, RUNNING = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH,
    RequestStatus.RUNNING,
)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, (STOPPED, None, [5, EOS])),
        ({"ignore_eos": True}, (LENGTH, None, [5, EOS, 6, 7])),
        ({"ignore_eos": True, "stop_token_ids": [EOS]}, (STOPPED, EOS, [5, EOS])),
        ({"stop_token_ids": [EOS]}, (STOPPED, None, [5, EOS])),
        ({"stop_token_ids": [5]}, (STOPPED, 5, [5])),
        ({"stop_token_ids": [6], "min_tokens": 2}, (STOPPED, 6, [5, EOS, 6])),
        ({"stop_token_ids": [6], "min_tokens": 3}, (LENGTH, None, [5, EOS, 6, 7])),
        ({"stop_token_ids": [7]}, (STOPPED, None, [5, EOS])),
        ({"ignore_eos": True, "stop_token_ids": [7]}, (STOPPED, 7, [5, EOS, 6, 7])),
    ],
)
def test_how_a_request_ends(
    params: dict[str, Any], expected: tuple[RequestStatus, int | None, list[int]]
) -> None:
    request = make_request(3, 4, params=SamplingParams(**params), eos=[EOS])
    assert ended_by(request, 5, EOS, 6, 7, 8) == expected


def test_without_max_tokens_only_the_prompt_is_computed() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    request = make_request(6, 0, credit=StreamCredit(capacity=1, sent=1))
    engine.add(request)
    engine.step()
    last = engine.step()
    assert [item.samples for item in last.output.scheduled] == [False]
    assert [update.token_id for update in last.updates] == [None]
    assert request.status is RequestStatus.FINISHED_LENGTH
    assert request.num_computed_tokens == 6


def test_a_fault_of_one_request_ends_it_alone() -> None:
    """D58."""
    engine = make_engine()
    bad, good = make_request(4, 3), make_request(4, 3)
    engine.add(bad, good)
    output = engine.scheduler.schedule()
    result = engine.runner.execute_model(output)
    fault = ZeroDivisionError()
    result.sampled[bad.request_id] = SampledToken(0, error=fault)
    updates = engine.scheduler.update_from_output(output, result)
    assert [(update.request, update.error) for update in updates] == [(bad, fault), (good, None)]
    assert bad.status is RequestStatus.FINISHED_ERROR
    assert bad.output_token_ids == []
    engine.run()
    assert_as_alone(good)


def test_a_prompt_that_cannot_be_scored_ends_its_request_and_is_not_cached() -> None:
    """Its KV may be as broken as its scores."""
    engine = make_engine(block_size=4, max_num_batched_tokens=8)
    bad = make_request(range(12), 0, params=SamplingParams(prompt_logprobs=0))
    engine.add(bad)
    output = engine.scheduler.schedule()
    result = engine.runner.execute_model(output)
    fault = ZeroDivisionError()
    result.sampled[bad.request_id] = SampledToken(0, error=fault)
    (update,) = engine.scheduler.update_from_output(output, result)
    assert update.error is fault
    assert bad.status is RequestStatus.FINISHED_ERROR
    engine.scheduler.check_integrity()
    assert not engine.kv.get_computed_blocks(make_request(range(12), 1))


def test_prompt_scores_are_reported_once_and_in_order() -> None:
    engine = make_engine(num_blocks=8, block_size=4, max_num_batched_tokens=3)
    params = SamplingParams(prompt_logprobs=0)
    first = make_request(range(8), 2, params=params)
    engine.add(first)
    engine.run()
    again = make_request(range(8), 2, params=params)
    engine.add(again)
    engine.step()
    engine.step()
    engine.scheduler._preempt(again, SchedulerOutput())  # in the middle of its prompt
    assert (again.num_prompt_scores, len(engine.kv.get_computed_blocks(again))) == (6, 1)
    engine.run()
    assert again.num_preemptions == 1
    for request in (first, again):
        scores = [
            s for ran in engine.history for u in ran.updates if u.request is request for s in u.prompt_scores
        ]
        assert [score.token_id for score in scores] == list(range(1, 8))
    assert_as_alone(first, again)


def test_times_are_noted() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    request = make_request(6, 3)
    engine.add(request)
    for _ in range(4):
        engine.clock.now += 1
        engine.step()
    assert (request.arrival_time, request.first_scheduled_time) == (100, 101)
    assert (request.first_token_time, request.last_token_time) == (102, 104)


# ---------------------------------------------------------------------- the budget


def shares(*wants: int, budget: int, long_budget: int = 1000) -> list[int]:
    """Prompts with more than 12 tokens are long."""
    return prefill_shares(wants, [want > 12 for want in wants], budget, long_budget)


def test_long_prompts_share_and_short_ones_go_one_after_the_other() -> None:
    assert shares(10, 10, 10, budget=16) == [10, 6, 0]
    assert shares(13, 13, 13, budget=16) == [5, 5, 6]
    assert shares(90, 5, 10, 90, budget=30) == [10, 5, 5, 10]
    assert shares(90, 5, 90, budget=30) == [12, 5, 13]
    assert shares(budget=30) == []


def test_a_short_prompt_does_not_wait_for_a_larger_one() -> None:
    assert shares(12, 12, 4, budget=16) == [12, 0, 4]
    assert shares(12, 6, 4, 6, budget=24) == [8, 6, 4, 6]


def test_long_prompts_take_no_more_than_they_may() -> None:
    assert shares(90, 5, 90, budget=40, long_budget=10) == [5, 5, 5]
    assert shares(90, 12, 12, 12, budget=40, long_budget=30) == [20, 12, 8, 0]
    assert shares(90, budget=40, long_budget=10) == [10]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=8),
    st.integers(0, 100),
    st.integers(1, 100),
)
def test_shares_keep_to_the_budgets(prompts: list[tuple[int, bool]], budget: int, long_budget: int) -> None:
    wants, are_long = [want for want, _ in prompts], [is_long for _, is_long in prompts]
    result = prefill_shares(wants, are_long, budget, long_budget)
    assert all(0 <= share <= want for share, want in zip(result, wants, strict=True))
    for_longs = sum(share for share, is_long in zip(result, are_long, strict=True) if is_long)
    assert for_longs <= long_budget
    assert sum(result) <= budget
    if prompts and budget:
        assert any(result), "something always comes on"
    for_shorts = sum(wants) - sum(want for want, is_long in prompts if is_long)
    assert sum(result) - for_longs == min(for_shorts, budget - for_longs)


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(0, 100))
def test_shares_are_fair(wants: list[int], budget: int) -> None:
    shares = fair_shares(wants, budget)
    assert sum(shares) == min(sum(wants), budget)
    for want, share in zip(wants, shares, strict=True):
        assert 0 <= share <= want
        assert share == want or share >= max(shares) - 1  # whoever gets less than wanted gets the most
    if budget >= len(wants):
        assert all(shares)


def test_decoding_requests_get_a_token_in_every_step_while_prompts_are_computed() -> None:
    """D60."""
    engine = make_engine(num_blocks=300, max_num_batched_tokens=16)
    decoders = [make_request(2, 40) for _ in range(4)]
    engine.add(*decoders)
    engine.step()
    long = make_request(400, 2)
    engine.add(long)
    for _ in range(5):
        engine.step()
    short = make_request(6, 2)
    engine.add(short)
    steps = 0
    while not short.output_token_ids:
        ran = engine.step()
        steps += 1
        assert all(ran.tokens[decoder.request_id] == 1 for decoder in decoders)
    assert steps == 1
    while not long.output_token_ids:
        ran = engine.step()
        assert sum(ran.tokens.values()) <= 16
        assert all(ran.tokens[d.request_id] == 1 for d in decoders if not d.status.is_finished)
    engine.run()
    assert_as_alone(long, short, *decoders)


def test_many_long_prompts_leave_a_place_for_a_short_one() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=16, max_num_partial_prefills=3)
    longs = [make_request(200, 1) for _ in range(5)]
    engine.add(*longs)
    engine.step()
    assert engine.scheduler.num_running == 2
    short = make_request(5, 1)
    engine.add(short)
    ran = engine.step()
    assert ran.sampled.keys() == {short.request_id}
    assert ran.tokens == {short.request_id: 5}, "the long ones stand aside"
    engine.add(make_request(5, 1))
    assert list(engine.step().tokens.values()) == [3, 3, 5], "but not twice in a row"
    engine.run()
    assert_as_alone(short, *longs)


def parts(engine: Engine) -> list[int]:
    """Run to the end; return how many tokens each step had."""
    done = len(engine.history)
    engine.run()
    return [sum(ran.tokens.values()) for ran in engine.history[done:]]


def test_a_long_prompt_comes_in_smaller_parts_where_others_come_and_go() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=16)
    alone = make_request(40, 1)
    engine.add(alone)
    assert parts(engine) == [16, 16, 8]
    engine.add(make_request(3, 1), make_request(3, 1))
    parts(engine)
    engine.add(make_request(40, 1))
    assert parts(engine) == [6] * 6 + [4]
    engine.clock.now += 60
    engine.add(make_request(40, 1))
    assert parts(engine) == [16, 16, 8]


def test_what_is_left_of_long_prompts_does_not_keep_a_short_one_waiting() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=16, max_num_partial_prefills=3)
    longs = [make_request(24, 1) for _ in range(4)]
    engine.add(*longs)
    while all(request.num_tokens - request.num_computed_tokens > 12 for request in longs):
        engine.step()
    short = make_request(5, 1)
    engine.add(short)
    assert short.request_id in engine.step().sampled
    engine.run()
    assert_as_alone(short, *longs)


def test_what_counts_as_long_can_be_set_and_what_is_cached_does_not_count() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=40, long_prefill_threshold=10)
    longs = [make_request(range(100 * i, 100 * i + 60), 1) for i in range(4)]
    engine.add(longs[0])
    engine.run()
    longs[0] = make_request(range(60), 1)
    engine.add(*longs[1:], longs[0], make_request(range(7000, 7030), 1))
    engine.step()
    running = [request.num_prompt_tokens for request in engine.scheduler.running]
    assert running == [60, 60, 60]  # three long ones of four places; the cached one is short, and done
    assert longs[0].status is RequestStatus.FINISHED_LENGTH
    engine.run()


def test_short_prompts_that_fit_a_step_are_not_limited_by_the_number_of_partial_ones() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=64, max_num_partial_prefills=2)
    shorts = [make_request(6, 1) for _ in range(10)]
    engine.add(*shorts)
    assert len(engine.step().sampled) == 10
    engine.add(*[make_request(25, 1) for _ in range(10)])
    assert sorted(engine.step().tokens.values()) == [14, 25, 25]  # the third is begun with what is left


def test_no_prompt_is_started_for_which_the_step_has_no_tokens() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=64)
    engine.add(*[make_request(25, 2) for _ in range(10)])
    assert list(engine.step().tokens.values()) == [25, 25, 14]
    assert engine.scheduler.num_running == 3


def test_the_number_of_partial_prefills_is_bounded() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=16, max_num_partial_prefills=2)
    requests = [make_request(15, 3) for _ in range(6)]
    engine.add(*requests)
    while engine.scheduler.has_work():
        engine.step()
        running = engine.scheduler.running
        assert sum(request.num_computed_tokens < request.num_prompt_tokens for request in running) <= 2


def test_no_more_run_than_seats_or_tokens_of_a_step() -> None:
    engine = make_engine(max_num_seqs=3)
    engine.add(*[make_request(2, 9) for _ in range(5)])
    engine.step()
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (3, 2)
    engine = make_engine(max_num_seqs=8, max_num_batched_tokens=2)
    requests = [make_request(3, 4) for _ in range(4)]
    engine.add(*requests)
    for ran in engine.run():
        assert 0 < sum(ran.tokens.values()) <= 2
    assert_as_alone(*requests)


def test_one_shot_computes_each_prompt_in_one_step() -> None:
    engine = make_engine(num_blocks=100, prefill_mode="one-shot", max_num_batched_tokens=16)
    long, fits, waits = make_request(40, 3), make_request(8, 3), make_request(9, 3)
    engine.add(long, fits, waits)
    assert engine.step().tokens == {long.request_id: 40}  # alone, whatever its length
    assert engine.step().tokens == {long.request_id: 1, fits.request_id: 8}  # 9 do not fit the 7 left
    assert engine.step().tokens == {long.request_id: 1, fits.request_id: 1, waits.request_id: 9}
    engine.run()
    assert_as_alone(long, fits, waits)


def test_the_contiguous_mode_is_one_block_for_each_answer() -> None:
    engine = make_engine(num_blocks=2, block_size=20, max_model_len=20, enable_prefix_caching=False)
    requests = [make_request(range(12), 8) for _ in range(4)]
    engine.add(*requests)
    for ran in engine.run():
        assert all(len(item.block_table) == 1 for item in ran.output.scheduled)
    assert engine.scheduler.num_preemptions == 0
    assert_as_alone(*requests)


# ---------------------------------------------------------------------- order


def test_first_come_first_served_and_smaller_priority_sooner() -> None:
    engine = make_engine(max_num_seqs=1)
    late, early, urgent = make_request(2, 1), make_request(2, 1, arrival=99), make_request(2, 1, priority=-1)
    engine.add(late, early, urgent)
    order = [next(iter(ran.tokens)) for ran in engine.run()]
    assert order == [urgent.request_id, early.request_id, late.request_id]


def test_priorities_age_so_that_nothing_starves() -> None:
    engine = make_engine(max_num_seqs=1, priority_ageing=10.0)
    patient = make_request(2, 1, priority=3)
    engine.add(patient, make_request(2, 1))
    steps = 0
    while not patient.status.is_finished:  # a more urgent one arrives in every second
        engine.step()
        engine.clock.now += 1
        engine.add(make_request(2, 1, arrival=engine.clock.now))
        steps += 1
    assert steps == 31


# ---------------------------------------------------------------------- time


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    engine = make_engine(max_num_seqs=1)
    running, waiting = make_request(4, 50, deadline=110), make_request(4, 4, deadline=105)
    engine.add(running, waiting)
    assert engine.scheduler.next_wakeup() == 105
    engine.step()
    engine.clock.now = 105
    assert engine.step().output.ended == [waiting]
    assert engine.scheduler.next_wakeup() == 110
    engine.clock.now = 110
    last = engine.step()
    assert last.output.ended == [running]
    assert last.output.scheduled == []
    assert {running.status, waiting.status} == {RequestStatus.FINISHED_TIMEOUT}
    assert engine.scheduler.next_wakeup() is None
    assert engine.kv.num_free_blocks == engine.kv.num_blocks


def test_a_queue_deadline_counts_only_until_the_first_step() -> None:
    engine = make_engine(max_num_seqs=1)
    first, second = make_request(4, 50, queue_deadline=101), make_request(4, 4, queue_deadline=103)
    engine.add(first, second)
    engine.step()
    assert engine.scheduler.next_wakeup() == 103
    engine.clock.now = 103
    assert engine.step().output.ended == [second]
    assert second.status is RequestStatus.FINISHED_TIMEOUT
    assert first.status is RequestStatus.RUNNING


def test_time_zero_is_a_time() -> None:
    engine = make_engine()
    engine.clock.now = -1
    request = make_request(4, 4, deadline=0)
    engine.add(request)
    engine.step()
    assert engine.scheduler.next_wakeup() == 0
    engine.clock.now = 0
    assert engine.step().output.ended == [request]


# ---------------------------------------------------------------------- shared beginnings and n answers


def test_a_cached_prompt_gives_the_same_answer_and_says_what_was_cached() -> None:
    """D61."""
    engine = make_engine(block_size=4)
    first = make_request(range(8), 6)
    engine.add(first)
    engine.run()
    again, longer = make_request(range(8), 6), make_request([*range(8), 9], 6)
    engine.add(again, longer)
    assert engine.step().tokens == {again.request_id: 4, longer.request_id: 1}
    engine.run()
    assert_as_alone(first, again, longer)
    assert [r.num_cached_tokens for r in (first, again, longer)] == [0, 4, 8]
    stats = engine.kv.stats
    assert (stats.requests, stats.full_hits, stats.partial_hits) == (3, 2, 0)
    assert (stats.queried_tokens, stats.hit_tokens) == (25, 12)
    partly = make_request([0, 1, 2, 3, 99, 99, 99, 99, 99], 1)
    engine.add(partly)
    engine.run()
    assert (stats.full_hits, stats.partial_hits) == (2, 1)


def siblings(number: int, prompt: int = 9) -> list[Request]:
    params = SamplingParams(n=number)
    leader = make_request(range(prompt), 4, params=params)
    rest = [
        make_request(range(prompt), 4, params=params, leader=leader, index=index)
        for index in range(1, number)
    ]
    return [leader, *rest]


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_the_prompt_of_n_answers_is_computed_once(enable_prefix_caching: bool) -> None:
    engine = make_engine(enable_prefix_caching=enable_prefix_caching, max_num_batched_tokens=6)
    group = siblings(3)
    engine.add(*group)
    ids = [request.request_id for request in group]
    assert engine.step().tokens == {ids[0]: 6}
    assert engine.step().tokens == {ids[0]: 3}
    assert engine.step().tokens == {ids[0]: 1, ids[1]: 1, ids[2]: 1}
    engine.run()
    assert_as_alone(*group)
    assert len({tuple(request.output_token_ids) for request in group}) > 1
    assert engine.kv.num_free_blocks == engine.kv.num_blocks


@pytest.mark.parametrize("steps", [0, 1])
def test_answers_do_not_wait_for_a_leader_that_has_ended(steps: int) -> None:
    engine = make_engine(max_num_batched_tokens=6)
    group = siblings(3)
    engine.add(*group)
    for _ in range(steps):
        engine.step()
    engine.scheduler.abort(group[0].request_id)
    engine.run()
    assert_as_alone(*group[1:])


def test_waiting_for_a_leader_holds_up_nobody_else() -> None:
    engine = make_engine(num_blocks=100, max_num_batched_tokens=8)
    group = siblings(2, prompt=40)
    other = make_request(3, 2)
    engine.add(*group, other)
    assert other.request_id in engine.step().sampled


def test_the_queue_deadline_of_answers_ends_when_their_leader_runs() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    group = siblings(2)
    for request in group:
        request.queue_deadline = 101
    engine.add(*group)
    engine.step()
    engine.clock.now = 102
    assert engine.step().output.ended == []
    engine.run()
    assert_as_alone(*group)


def test_a_prompt_that_lacks_only_the_row_that_samples_is_unfinished_too() -> None:
    engine = make_engine(
        num_blocks=100, max_num_batched_tokens=16, max_num_partial_prefills=1, long_prefill_threshold=100
    )
    credit = StreamCredit(1)
    first, second = make_request(20, 2, credit=credit), make_request(30, 2)
    engine.add(first)
    engine.step()
    credit.sent += 1
    engine.add(second)
    assert engine.step().tokens == {first.request_id: 3}
    assert engine.step().tokens == {second.request_id: 16}


def test_requests_that_come_together_compute_their_common_beginning_once() -> None:
    engine = make_engine(max_num_batched_tokens=8, long_prefill_threshold=100)
    first, second = make_request([*range(12), 50], 2), make_request([*range(12), 60, 61], 2)
    other = make_request(3, 2)
    engine.add(first, second, other)
    ids = [request.request_id for request in (first, second, other)]
    assert engine.step().tokens == {ids[0]: 8}
    assert engine.step().tokens == {ids[0]: 5, ids[2]: 3}
    assert engine.step().tokens == {ids[0]: 1, ids[1]: 2, ids[2]: 1}
    engine.run()
    assert_as_alone(first, second, other)
    assert [request.num_cached_tokens for request in (first, second)] == [0, 12]


def test_only_what_is_not_cached_is_awaited() -> None:
    engine = make_engine(max_num_batched_tokens=16)
    cached = make_request(range(8), 1)
    engine.add(cached)
    engine.run()
    scored = make_request([*range(8), 70], 1, params=SamplingParams(prompt_logprobs=0))
    second = make_request([*range(8), 80], 1)
    engine.add(scored, second)
    assert engine.step().tokens == {scored.request_id: 9, second.request_id: 1}


@pytest.mark.parametrize("change", ["salt", "no cache", "prompt scores"])
def test_nothing_is_awaited_that_cannot_be_shared(change: str) -> None:
    engine = make_engine(enable_prefix_caching=change != "no cache")
    first = make_request(range(12), 2)
    params = SamplingParams(prompt_logprobs=0 if change == "prompt scores" else None)
    second = make_request(range(12), 2, salt="x" if change == "salt" else "", params=params)
    engine.add(first, second)
    assert engine.step().tokens == {first.request_id: 12, second.request_id: 12}


@pytest.mark.parametrize("end", ["aborted", "preempted"])
def test_a_beginning_is_not_awaited_from_one_that_does_not_compute_it(end: str) -> None:
    engine = make_engine(max_num_batched_tokens=4)
    first, second = make_request([*range(12), 50], 2), make_request([*range(12), 60], 2)
    engine.add(first, second)
    engine.step()
    assert second.awaited == (first, 12)
    assert second.first_scheduled_time is None
    if end == "aborted":
        engine.scheduler.abort(first.request_id)
    else:
        engine.scheduler._preempt(first, SchedulerOutput(started=0))
    engine.run()
    assert second.awaited is None
    assert_as_alone(second)


def test_a_reader_who_does_not_read_holds_up_nobody_with_the_same_beginning() -> None:
    """The last token's row waits for the reader, and with it the last block: nobody waits for that one."""
    engine = make_engine(num_blocks=100, max_num_batched_tokens=8, long_prefill_threshold=100)
    credit = StreamCredit(1)
    first, second = make_request(range(12), 2, credit=credit), make_request(range(14), 2)
    engine.add(first)
    engine.step()
    credit.sent += 1
    engine.add(second)
    for _ in range(4):
        engine.step()
    assert (first.num_computed_tokens, first.num_output_tokens) == (11, 0)
    assert second.num_output_tokens


def test_one_that_waits_for_a_beginning_keeps_its_turn() -> None:
    engine = make_engine(max_num_seqs=2, max_num_batched_tokens=4)
    first, second = make_request([*range(12), 50], 2), make_request([*range(12), 60], 2)
    other = make_request(3, 40)
    engine.add(first, second, other)
    engine.run_while(second)
    assert other.first_scheduled_time is None or other.num_output_tokens < 5
    engine.run()
    assert_as_alone(first, second, other)


def test_one_that_waits_for_a_beginning_keeps_its_blocks() -> None:
    engine = make_engine(num_blocks=9, max_num_batched_tokens=8)
    first, second = make_request([*range(12), 50], 2), make_request([*range(12), *[60] * 5], 2)
    large = make_request(12, 2)
    engine.add(first, second, large)
    engine.step()
    assert second.awaited is not None
    engine.run_while(second)
    assert large.first_scheduled_time is None
    engine.run()
    assert_as_alone(first, second, large)


@pytest.mark.parametrize("why", ["it is less than half", "the other is long", "the other comes later"])
def test_what_would_come_sooner_without_waiting_does_not_wait(why: str) -> None:
    threshold = 26 if why == "the other is long" else 12
    engine = make_engine(num_blocks=100, max_num_batched_tokens=12, long_prefill_threshold=threshold)
    shared = {"it is less than half": 4, "the other is long": 16, "the other comes later": 40}[why]
    first = make_request([*range(shared), *[50] * 12], 1)
    second = make_request([*range(shared), *[60] * 9], 1, priority=-50 if "later" in why else 0)
    engine.add(first)
    if why == "the other comes later":
        engine.step()
    engine.add(second)
    engine.step()
    assert second.awaited is None
    assert second.first_scheduled_time is not None


@pytest.mark.parametrize("shared", [16, 40])
def test_what_would_not_come_sooner_waits(shared: int) -> None:
    """The same without a reason."""
    engine = make_engine(num_blocks=100, max_num_batched_tokens=12)
    first, second = (make_request([*range(shared), *[end] * 12], 1) for end in (50, 60))
    engine.add(first)
    if shared == 40:
        engine.step()
    engine.add(second)
    engine.step()
    assert second.awaited == (first, shared)


def test_equal_prompts_are_computed_once_though_they_first_wait_for_another() -> None:
    engine = make_engine(max_num_batched_tokens=40, long_prefill_threshold=100)
    first = make_request([*range(24), 50], 1)
    equal = [make_request([*range(24), *[60] * 13], 1) for _ in range(3)]
    engine.add(first, *equal)
    engine.run()
    assert_as_alone(first, *equal)
    assert [request.num_cached_tokens for request in equal] == [24, 36, 36]


def test_long_ones_that_wait_leave_room_for_short_ones() -> None:
    engine = make_engine(num_blocks=200, max_num_seqs=8, max_num_batched_tokens=8)
    longs = [make_request([*range(40), 50 + number], 1) for number in range(9)]
    short = make_request(4, 1)
    engine.add(*longs)
    engine.step()
    engine.add(short)
    for _ in range(2):
        engine.step()
    assert short.num_output_tokens
    engine.run()
    assert_as_alone(short, *longs)


def test_nobody_is_preempted_for_what_is_kept_for_others() -> None:
    engine = make_engine(num_blocks=200, max_num_seqs=4, max_num_batched_tokens=8)
    credit = StreamCredit(1)
    slow = make_request(3, 9, credit=credit)
    engine.add(slow)
    while credit.available:
        engine.step()
    first, *others = [make_request([*range(30), 50 + number], 1) for number in range(3)]
    last = make_request(20, 1)
    engine.add(first, *others, last)
    engine.step()
    engine.step()
    assert [request.awaited is not None for request in others] == [True, True]
    assert slow.num_preemptions == 0


def test_tokens_that_are_cached_are_not_awaited_with_the_rest() -> None:
    """One that scores its prompt computes it all; another has most of it, and loses nothing by starting."""
    engine = make_engine(num_blocks=200, max_num_batched_tokens=8, long_prefill_threshold=100)
    cached = make_request(range(40), 1)
    engine.add(cached)
    engine.run()
    scored = make_request([*range(44), 50], 1, params=SamplingParams(prompt_logprobs=0))
    second = make_request([*range(44), *[60] * 9], 1)
    engine.add(scored)
    engine.step()
    assert not engine.scheduler._beginnings.are_awaited(second)


def test_when_one_that_is_awaited_is_aborted_another_takes_its_place() -> None:
    engine = make_engine(
        num_blocks=400, max_num_seqs=8, max_num_batched_tokens=16, max_num_partial_prefills=8
    )
    first, *others = [make_request([*range(60), 100 + number], 2) for number in range(6)]
    engine.add(first, *others)
    engine.step()
    assert all(request.awaited is not None for request in others)
    engine.scheduler.abort(first.request_id)
    engine.run()
    assert_as_alone(*others)
    assert [request.num_cached_tokens for request in others[1:]] == [60] * 4


def test_a_prompt_in_one_shot_does_not_count_on_blocks_that_are_freed_for_it() -> None:
    engine = make_engine(
        64, 1, max_cached_blocks=0, prefill_mode="one-shot", max_num_batched_tokens=8, max_num_seqs=2
    )
    slow = make_request(range(10), 5, credit=StreamCredit(1))
    engine.add(slow)
    engine.step()
    short, longer = make_request(2, 5), make_request([*range(10), 99], 2)
    engine.add(short, longer)
    assert engine.step().tokens == {short.request_id: 2}


def test_nobody_waits_for_a_beginning_in_vain_twice() -> None:
    """Where nothing is kept, the blocks of one that ends with its first token are gone."""
    engine = make_engine(max_num_batched_tokens=100, max_cached_blocks=0)
    group = [make_request([*range(12), 50 + number], 1) for number in range(6)]
    engine.add(*group)
    assert [len(ran.sampled) for ran in engine.run()] == [1, 5]
    assert_as_alone(*group)


def test_a_cache_that_is_forgotten_meanwhile_costs_one_wait() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    first, second = make_request([*range(12), 50], 2), make_request([*range(12), 60], 2)
    engine.add(first, second)
    engine.step()
    engine.step()
    assert (second.awaited, first.num_computed_tokens) == ((first, 12), 6)
    engine.kv.reset_prefix_cache()
    while second.awaited is not None:
        engine.step()
    assert not second.may_await
    engine.run()
    assert_as_alone(first, second)
    assert second.num_cached_tokens == 0


def test_waiting_for_a_beginning_is_waiting_in_the_queue() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    first, second = make_request([*range(12), 50], 2), make_request([*range(12), 60], 2, queue_deadline=101)
    engine.add(first, second)
    engine.step()
    engine.clock.now = 102
    assert engine.step().output.ended == [second]


# ---------------------------------------------------------------------- integrity


def test_the_integrity_check_notices_damage() -> None:
    engine = make_engine()
    first, second = make_request(4, 4), make_request(4, 4)
    engine.add(first, second)
    engine.step()
    first.status = RequestStatus.WAITING
    with pytest.raises(IntegrityError, match="runs, but is"):
        engine.scheduler.check_integrity()
    first.status = RequestStatus.RUNNING
    del engine.scheduler.requests[first.request_id]
    with pytest.raises(IntegrityError, match="lost"):
        engine.scheduler.check_integrity()
    engine.scheduler.requests[first.request_id] = first
    first.rank, second.rank = second.rank, first.rank
    with pytest.raises(IntegrityError, match="out of order"):
        engine.scheduler.check_integrity()


def test_nothing_is_planned_twice() -> None:
    engine = make_engine(max_num_batched_tokens=5)
    engine.add(*[make_request(7, 5) for _ in range(4)])
    for ran in engine.run():
        ids = [item.request.request_id for item in ran.output.scheduled]
        assert len(ids) == len(set(ids))
        assert ran.output.num_scheduled_tokens == sum(ran.tokens.values())
    starts: dict[str, list[tuple[int, int]]] = {}
    for ran in engine.history:
        for item in ran.output.scheduled:
            starts.setdefault(item.request.request_id, []).append((item.start, item.num_new_tokens))
    for chunks in starts.values():
        assert all(start + length == following for (start, length), (following, _) in pairwise(chunks))
