"""Prompts make steps with answers in them a bounded number of times longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.harness import Engine, make_engine, make_request
from tinyllm.core.pace import MIN_BUDGET, Pace


def seconds(num_decodes: int, num_prefill_tokens: int) -> float:
    """A machine: what a step takes on it."""
    return 0.007 + 0.0005 * num_decodes + 0.0003 * num_prefill_tokens


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 512)), min_size=30), st.floats(1.5, 4))
def test_keeps_to_the_slowdown_on_a_steady_machine(steps: list[tuple[int, int]], slowdown: float) -> None:
    pace = Pace(slowdown)
    for decodes in (1, 2, 4, 8, 16, 32, 64):
        pace.note(decodes, 0, seconds(decodes, 0))
    for decodes, prefill in steps:
        pace.note(decodes, prefill, seconds(decodes, prefill))
    for decodes in (1, 2, 4, 8, 16, 32, 64):
        budget = pace.prefill_budget(decodes)
        if budget is not None and budget > MIN_BUDGET:
            assert seconds(decodes, budget) <= 1.8 * slowdown * seconds(decodes, 0)


def test_learns_what_a_token_costs() -> None:
    pace = Pace(2.5)
    assert pace.prefill_budget(8) is None, "nothing is known yet"
    pace.note(0, 256, 256 * 0.0003)
    assert pace.prefill_budget(8) is None, "how long answers take alone is not known yet"
    pace.note(8, 0, 0.012)
    assert pace.prefill_budget(8) == 60
    for _ in range(30):  # prompts got twice as dear
        pace.note(8, 60, 0.012 + 60 * 0.0006)
    assert pace.prefill_budget(8) == 30


def test_goes_by_the_nearest_known_number_of_answers() -> None:
    pace = Pace(2.0)
    pace.note(0, 100, 0.1)
    pace.note(1, 0, 0.05)
    pace.note(32, 0, 0.2)
    assert pace.prefill_budget(2) == pace.prefill_budget(1) == 50
    assert pace.prefill_budget(20) == pace.prefill_budget(63) == 200


def test_a_little_always_goes_on_and_zero_is_no_limit() -> None:
    pace = Pace(1.0)
    pace.note(0, 100, 0.1)
    pace.note(4, 0, 0.01)
    assert pace.prefill_budget(4) == MIN_BUDGET
    unlimited = Pace(0.0)
    unlimited.note(0, 100, 0.1)
    unlimited.note(4, 0, 0.01)
    assert unlimited.prefill_budget(4) is None


def test_a_step_may_last_some_seconds() -> None:
    pace = Pace(2.5)
    assert pace.budget_within(0.08, 8) is None, "nothing is known yet"
    pace.note(0, 256, 256 * 0.0003)
    assert pace.budget_within(0.08, 8) == 266, "how long answers take alone is not known yet"
    pace.note(8, 0, 0.012)
    assert pace.budget_within(0.08, 8) == 226
    assert pace.budget_within(0.01, 8) == MIN_BUDGET


def test_a_prompt_alone_teaches_what_it_takes_beside_reading_the_weights() -> None:
    pace = Pace(2.5)
    pace.note(1, 0, 0.009)
    pace.note(0, 32, 0.009 + 32 * 0.0003)
    assert pace.budget_within(0.009 + 33 * 0.0003, 1) == 33
    slow = Pace(2.5)
    slow.note(32, 0, 0.06)  # says little of a step without answers
    slow.note(0, 128, 0.061)
    assert slow.budget_within(0.06 + 129 * 0.061 / 128, 32) == 129


def test_a_clock_that_stands_still_teaches_nothing() -> None:
    pace = Pace(2.0)
    pace.note(0, 100, 0.0)
    pace.note(4, 0, -1.0)
    assert pace.prefill_budget(4) is None


def timed_step(engine: Engine) -> tuple[int, int, float]:
    """Run a step on the machine; return answers, prompt tokens and seconds."""
    output = engine.scheduler.schedule()
    prefill = output.num_scheduled_tokens - output.num_decodes
    took = seconds(output.num_decodes, prefill)
    engine.clock.now += took
    engine.send(engine.scheduler.update_from_output(output, engine.runner.execute_model(output)))
    return output.num_decodes, prefill, took


@pytest.mark.parametrize(
    ("limit", "slowdown", "longest"),
    [(0.08, 2.5, 0.08), (0.05, 1.5, 0.05), (1.0, 2.5, 0.17), (0.0, 4.0, 0.065), (0.08, 0.0, 0.17)],
)
def test_a_burst_of_short_prompts_beside_answers_keeps_to_the_seconds(
    limit: float, slowdown: float, longest: float
) -> None:
    """Or to twice what long prompts may add, here with up to 16 answers; 0.17 is a whole step."""
    engine = make_engine(
        num_blocks=2000, max_num_seqs=16, max_step_seconds=limit, max_prefill_slowdown=slowdown
    )
    engine.add(*(make_request(20, 300) for _ in range(4)))
    for _ in range(5):
        timed_step(engine)
    burst = [make_request(60, 3) for _ in range(40)]
    engine.add(*burst)
    steps = []
    while any(request.first_token_time is None for request in burst):
        steps.append(timed_step(engine))
    assert 0.9 * longest < max(took for _, _, took in steps) <= longest


def test_a_long_prompt_beside_answers_comes_in_small_pieces() -> None:
    engine = make_engine(num_blocks=800, max_num_batched_tokens=256, max_model_len=3000)

    answers = [make_request(20, 300, request_id=f"a{i}") for i in range(8)]
    engine.add(*answers)
    for _ in range(20):
        timed_step(engine)
    long = make_request(2000, 5, request_id="long")
    engine.add(long)
    worst = 0.0
    while long.first_token_time is None:
        decodes, prefill, took = timed_step(engine)
        assert decodes == 8
        assert 0 < prefill < 256
        worst = max(worst, took / seconds(8, 0))
    assert 2.0 < worst < 3.0


def test_a_stale_estimate_does_not_make_prompts_free() -> None:
    pace = Pace(2.5)
    pace.note(0, 256, 0.08)
    pace.note(32, 0, 0.1)
    before = pace.prefill_budget(1)
    for _ in range(5000):  # one answer on a machine where 32 were slow
        pace.note(1, 16, 0.02)
    assert pace.prefill_budget(1) == before
