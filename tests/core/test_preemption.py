"""What happens when blocks run out."""

from __future__ import annotations

import pytest

from tests.core.harness import assert_as_alone, make_engine, make_request
from tinyllm.core.admission import MAX_PREEMPTIONS
from tinyllm.core.request import RequestStatus


def test_the_newest_is_preempted_and_nothing_is_lost() -> None:
    engine = make_engine(num_blocks=7, block_size=4)
    old, new = make_request(8, 12), make_request(8, 12)
    engine.add(old, new)
    preempted = []
    while engine.scheduler.has_work():
        ran = engine.step()
        preempted += ran.output.preempted
        if ran.output.preempted:
            assert new.status is RequestStatus.PREEMPTED
            assert new.num_output_tokens > 0  # it keeps its tokens
    assert preempted
    assert set(preempted) == {new}
    assert old.num_preemptions == 0
    assert new.num_preemptions == engine.scheduler.num_preemptions == len(preempted)
    assert_as_alone(old, new)
    assert engine.kv.num_free_blocks == 7


def test_the_lowest_priority_is_preempted_first() -> None:
    engine = make_engine(num_blocks=7, block_size=4)
    humble, urgent = make_request(8, 12, priority=1), make_request(8, 12)
    engine.add(humble, urgent)
    engine.run()
    assert (humble.num_preemptions > 0, urgent.num_preemptions) == (True, 0)
    assert_as_alone(humble, urgent)


def test_two_holders_of_half_the_pool_do_not_block_each_other() -> None:
    engine = make_engine(num_blocks=8, block_size=4, enable_prefix_caching=False)
    requests = [make_request(15, 17), make_request(15, 17)]
    engine.add(*requests)
    engine.run()
    assert_as_alone(*requests)


def test_a_preempted_request_comes_back_before_those_that_never_ran() -> None:
    engine = make_engine(num_blocks=6, block_size=4)
    old, new, last = make_request(8, 8), make_request(8, 8), make_request(8, 8)
    engine.add(old, new, last)
    engine.run()
    assert new.num_preemptions > 0
    first_steps = [
        next(i for i, ran in enumerate(engine.history) if r.request_id in ran.tokens) for r in (new, last)
    ]
    assert first_steps == sorted(first_steps)
    again = max(i for i, ran in enumerate(engine.history) if ran.tokens.get(new.request_id, 0) > 1)
    assert again < first_steps[1]
    assert_as_alone(old, new, last)


def test_what_a_preempted_request_computed_is_found_in_the_cache() -> None:
    engine = make_engine(num_blocks=9, block_size=4)
    old, new = make_request(12, 10), make_request(12, 10)
    engine.add(old, new)
    resumed = []
    while engine.scheduler.has_work():
        ran = engine.step()
        resumed += [i for i in ran.output.scheduled if i.request is new and i.start and i.num_new_tokens > 1]
    assert new.num_preemptions > 0
    assert resumed
    assert new.num_cached_tokens == 0  # what it found when it was first scheduled
    assert_as_alone(old, new)


def test_a_request_starts_only_with_room_to_grow() -> None:
    engine = make_engine(num_blocks=5, block_size=4)
    engine.add(make_request(8, 8), make_request(8, 8))
    engine.step()
    assert engine.scheduler.num_running == 1  # 4 blocks for two prompts, but each will need one more at once


def test_the_more_often_it_was_preempted_the_more_room_it_waits_for() -> None:
    started = []
    for num_preemptions in range(4):
        engine = make_engine(num_blocks=8, block_size=4)
        old, new = make_request(8, 16), make_request(8, 16)
        new.num_preemptions = num_preemptions
        engine.add(old, new)
        engine.step()
        started.append(new.status is RequestStatus.RUNNING)
    assert started == [True, True, False, False]  # 4 of 8 blocks are left for both


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("num_blocks", [8, 12, 20, 40])
def test_64_requests_with_a_shared_beginning_in_a_small_cache(
    num_blocks: int, enable_prefix_caching: bool
) -> None:
    """D62: every answer is the one it gives alone, and nobody is preempted again and again."""
    engine = make_engine(
        num_blocks, 4, enable_prefix_caching=enable_prefix_caching, max_num_batched_tokens=40
    )
    requests = [make_request([*range(8), i], 3 + i % 20) for i in range(64)]
    engine.add(*requests)
    engine.run(5000)
    assert_as_alone(*requests)
    assert max(request.num_preemptions for request in requests) <= MAX_PREEMPTIONS
    assert engine.kv.num_free_blocks == num_blocks


def test_after_so_many_preemptions_there_must_be_room_to_finish() -> None:
    engine = make_engine(num_blocks=8, block_size=4)
    old, new = make_request(8, 16), make_request(8, 16)
    new.num_preemptions = MAX_PREEMPTIONS
    engine.add(old, new)
    engine.step()
    assert new.status is RequestStatus.WAITING  # it needs 6 blocks in the end, and so does the other
    urgent = make_request(8, 1, priority=-5)
    engine.add(urgent)
    engine.run()
    assert new.num_preemptions == MAX_PREEMPTIONS
    assert_as_alone(old, new, urgent)


def test_nobody_starts_before_one_that_was_promised_to_finish_if_that_breaks_it() -> None:
    engine = make_engine(num_blocks=8, block_size=4)
    promised = make_request(8, 16)
    promised.num_preemptions = MAX_PREEMPTIONS
    engine.add(promised)
    engine.step()
    urgent, behind = make_request(4, 8, priority=-5), make_request(4, 4)
    engine.add(urgent, behind)
    engine.step()
    assert urgent.status is RequestStatus.WAITING  # 6 and 3 blocks do not fit
    engine.run()
    assert promised.num_preemptions == MAX_PREEMPTIONS
    assert_as_alone(promised, urgent, behind)


def test_eviction_under_pressure_never_touches_a_shared_block() -> None:
    """D64: the fake runner reads back every block that it relies on."""
    engine = make_engine(num_blocks=10, block_size=2, max_num_seqs=3)
    requests = [make_request([i % 3] * 4 + [i] * 2, 6) for i in range(40)]
    engine.add(*requests)
    engine.run(5000)
    assert engine.kv.pool.num_evictions > 20
    assert engine.kv.stats.hit_tokens > 0
    assert_as_alone(*requests)
    assert engine.kv.num_free_blocks == 10
