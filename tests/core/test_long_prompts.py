"""Long prompts take parts of steps, and leave the others time."""

from __future__ import annotations

import pytest

from tests.core.harness import make_engine, make_request
from tinyllm.core.long_prompts import COMPANY_SECONDS, LongPrompts
from tinyllm.core.prompt_budget import PromptBudget
from tinyllm.core.scheduler_config import SchedulerConfig


def budget(
    prompts: LongPrompts,
    *,
    step: int = 512,
    num_long: int = 1,
    short: bool = False,
    decodes: int = 0,
    now: float = 0.0,
) -> int:
    return prompts.budget(step, num_long, short, decodes, now)


def test_they_leave_time_for_those_who_may_come() -> None:
    prompts = LongPrompts()
    assert budget(prompts) == 512, "nobody came beside another yet"
    prompts.note_company(100.0)
    assert budget(prompts, now=101.0) == 192
    assert budget(prompts, now=100.0 + COMPANY_SECONDS + 1) == 512
    assert budget(prompts, decodes=3, now=1000.0) == 128
    assert budget(prompts, decodes=3, num_long=2, now=1000.0) == 192
    assert budget(prompts, num_long=2, now=1000.0) == 192
    assert budget(LongPrompts(), step=3, decodes=1) == 1, "a little always goes on"


def test_they_stand_aside_for_short_ones_every_other_time() -> None:
    prompts = LongPrompts()
    assert [budget(prompts, short=True) for _ in range(4)] == [0, 128, 0, 128]
    assert budget(prompts, decodes=2) == 128
    assert [budget(prompts, short=True, num_long=2) for _ in range(2)] == [0, 192]


def test_without_a_limit_on_the_slowdown_they_take_whole_steps() -> None:
    engine = make_engine(num_blocks=400, max_num_batched_tokens=16, max_prefill_slowdown=0.0)
    engine.add(make_request(2, 40))
    engine.step()
    long = make_request(60, 1)
    engine.add(long)
    assert engine.step().tokens[long.request_id] == 15


@pytest.mark.parametrize(("token_seconds", "expected"), [(2e-3, 127), (80e-6, 239), (2e-5, 511)])
def test_parts_of_a_fast_model_are_of_what_its_steps_have_time_for(
    token_seconds: float, expected: int
) -> None:
    """Others wait no longer for them, and larger parts cost less. With the answer's, rows are 16 times n."""
    budget = PromptBudget(SchedulerConfig(max_model_len=4096, max_step_seconds=0.08))
    assert budget.of_long([True], 1, 0.0) == 127, "nothing is known yet"
    budget.note_step(1, 0, 3e-3)
    budget.note_step(1, 500, 3e-3 + 500 * token_seconds)
    assert budget.of_long([True], 1, 0.0) == expected
