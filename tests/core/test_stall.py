"""Requests whose reader does not read."""

from __future__ import annotations

import pytest

from tests.core.harness import Engine, assert_as_alone, make_engine, make_request
from tinyllm.core.request import Request, RequestStatus, StreamCredit
from tinyllm.params import SamplingParams


def stalled_engine(credit: StreamCredit, **options: int | float) -> tuple[Engine, Request]:
    """An engine with one request that has filled its stream."""
    engine = make_engine(**options)  # type: ignore[arg-type]
    request = make_request(4, 40, credit=credit)
    engine.add(request)
    for _ in range(credit.capacity):
        assert engine.step().sampled
    assert engine.step().output.scheduled == []
    return engine, request


def test_a_full_stream_pauses_its_request_and_reading_resumes_it() -> None:
    credit = StreamCredit(capacity=3)
    engine, request = stalled_engine(credit)
    assert credit.stalled
    assert request.stalled_since == 100
    assert engine.scheduler.num_stalled == 1
    assert request.status is RequestStatus.RUNNING
    credit.read += 1
    assert engine.step().sampled
    assert not credit.stalled
    assert request.stalled_since is None
    assert engine.step().output.scheduled == []
    while engine.scheduler.has_work():
        credit.read = credit.sent
        engine.step()
    assert_as_alone(request)


def test_no_wake_up_is_lost_between_the_two_looks() -> None:
    class LateReader(StreamCredit):
        """Reads just when ``stalled`` is being set: its own test of ``stalled`` came too early."""

        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            if name == "stalled" and value:
                object.__setattr__(self, "read", self.sent)
            object.__setattr__(self, name, value)

    engine = make_engine()
    credit = LateReader(capacity=1)
    request = make_request(4, 5, credit=credit)
    engine.add(request)
    engine.run()  # asserts that no step is empty
    assert not credit.stalled
    assert_as_alone(request)


def test_a_stalled_request_ends_after_the_timeout() -> None:
    credit = StreamCredit(capacity=2)
    engine, request = stalled_engine(credit, stall_timeout=5)
    assert engine.scheduler.next_wakeup() == 105
    engine.clock.now = 104.9
    assert engine.step().output.ended == []
    engine.clock.now = 105
    assert engine.step().output.ended == [request]
    assert request.status is RequestStatus.FINISHED_STALLED
    assert engine.kv.num_free_blocks == engine.kv.num_blocks
    assert not engine.scheduler.has_work()


def test_a_deadline_counts_while_stalled() -> None:
    credit = StreamCredit(capacity=1)
    engine = make_engine(stall_timeout=50)
    request = make_request(4, 40, credit=credit, deadline=110)
    engine.add(request)
    engine.step()
    engine.step()
    assert engine.scheduler.next_wakeup() == 110
    engine.clock.now = 110
    assert engine.step().output.ended == [request]
    assert request.status is RequestStatus.FINISHED_TIMEOUT


def test_a_reader_that_came_back_in_time_is_not_timed_out() -> None:
    credit = StreamCredit(capacity=2)
    engine, request = stalled_engine(credit, stall_timeout=5)
    credit.read += 1
    engine.clock.now = 200
    assert engine.step().sampled
    assert request.status is RequestStatus.RUNNING


def test_a_slow_reader_does_not_slow_the_others() -> None:
    """D56."""
    engine = make_engine(num_blocks=100)
    slow = make_request(4, 40, credit=StreamCredit(capacity=2))
    others = [make_request(4, 20) for _ in range(7)]
    engine.add(slow, *others)
    for _ in range(20):
        assert all(other.request_id in engine.step().sampled for other in others[:1])
    assert_as_alone(*others)
    assert len(engine.history) == 20
    assert slow.num_output_tokens == 2


@pytest.mark.parametrize("options", [{"max_num_seqs": 1}, {"num_blocks": 11}])
def test_stalled_requests_give_up_seat_and_blocks_for_waiting_ones(options: dict[str, int]) -> None:
    credit = StreamCredit(capacity=4)
    engine, stalled = stalled_engine(credit, **options)
    other = make_request(36, 4)
    engine.add(other)
    ran = engine.step()
    assert ran.output.preempted == [stalled]
    assert other.request_id in ran.tokens
    assert stalled.status is RequestStatus.PREEMPTED
    assert stalled.stalled_since == 100
    for _ in range(3):
        engine.step()
    credit.read += 1
    engine.run_while(other)
    assert stalled.status is RequestStatus.PREEMPTED  # half of the buffer must be free
    assert engine.step().output.scheduled == []
    credit.read += 1
    assert engine.step().sampled
    while engine.scheduler.has_work():
        credit.read = credit.sent
        engine.step()
    assert_as_alone(stalled, other)


def test_stalled_requests_that_come_back_do_not_exceed_the_budget() -> None:
    engine = make_engine(max_num_batched_tokens=2, max_num_seqs=8)
    credits = [StreamCredit(capacity=1) for _ in range(2)]
    stalled = [make_request(2, 9, credit=credit) for credit in credits]
    engine.add(*stalled)
    while engine.step().output.scheduled:
        pass
    others = [make_request(2, 9) for _ in range(2)]
    engine.add(*others)
    for _ in range(4):
        engine.step()
    while engine.scheduler.has_work():
        for credit in credits:
            credit.read = credit.sent
        assert 0 < engine.step().output.num_scheduled_tokens <= 2
    assert_as_alone(*stalled, *others)


def test_stalled_requests_are_the_first_to_give_blocks_to_running_ones() -> None:
    engine = make_engine(num_blocks=8, block_size=4)
    stalled = make_request(8, 24, credit=StreamCredit(capacity=1))
    growing, newest = make_request(8, 12), make_request(4, 8)
    engine.add(stalled, growing, newest)
    assert [r for _ in range(8) for r in engine.step().output.preempted] == [stalled]
    while engine.scheduler.num_running:
        engine.step()
    assert_as_alone(growing, newest)


def test_the_stall_clock_of_a_preempted_request_restarts_when_its_reader_reads() -> None:
    credit = StreamCredit(capacity=8)
    engine, request = stalled_engine(credit, stall_timeout=5, max_num_seqs=1)
    engine.add(make_request(4, 1))
    engine.step()
    assert request.status is RequestStatus.PREEMPTED
    for _ in range(3):
        engine.clock.now += 4
        credit.read += 1
        assert engine.step().output.scheduled == []
        assert request.stalled_since == engine.clock.now
        assert credit.stalled
    engine.clock.now += 5
    assert engine.step().output.ended == [request]


def test_without_credit_a_prompt_is_computed_up_to_its_last_token() -> None:
    engine = make_engine(max_num_batched_tokens=4)
    credit = StreamCredit(capacity=1)
    request = make_request(8, 3, credit=credit)
    engine.add(request)
    engine.step()
    credit.sent += 1  # another answer of the same stream
    assert engine.step().tokens == {request.request_id: 3}
    assert engine.step().output.scheduled == []
    assert request.num_computed_tokens == 7
    credit.read += 1
    assert engine.step().sampled


def test_all_answers_of_a_stream_need_one_piece_together() -> None:
    engine = make_engine()
    credit, params = StreamCredit(capacity=3), SamplingParams(n=3)
    group = [make_request(range(9), 5, params=params, credit=credit)]
    group += [
        make_request(range(9), 5, params=params, credit=credit, leader=group[0], index=i) for i in (1, 2)
    ]
    engine.add(*group)
    assert [len(engine.step().sampled) for _ in range(4)] == [1, 3, 3, 0]
    credit.read += 1
    assert [len(engine.step().sampled) for _ in range(2)] == [3, 0]
    credit.read = credit.sent
    engine.run()
    assert_as_alone(*group)
