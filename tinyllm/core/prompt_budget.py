"""`PromptBudget`: how many tokens of prompts the next step takes."""

from __future__ import annotations

from collections.abc import Sequence

from tinyllm.core.long_prompts import LongPrompts
from tinyllm.core.pace import Pace
from tinyllm.core.scheduler_config import SchedulerConfig

__all__ = ["PromptBudget"]

ROWS = 16
"""Steps with prompts have a multiple of so many rows where they can: kernels are made for a number of rows,
take memory and are kept, so few different numbers should occur."""
ANSWERS_PER_PROMPT = 4
"""From so many answers for each prompt on, they set the pace."""


class PromptBudget:
    """Weighs prompts against the answers generated beside them, and long prompts against short ones."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._step = config.max_num_batched_tokens
        self._step_seconds = config.max_step_seconds
        self._pace = Pace(config.max_prefill_slowdown)
        self._long_prompts = LongPrompts()
        self._one_shot = config.prefill_mode == "one-shot"
        self._has_parts = bool(config.max_prefill_slowdown) and not self._one_shot

    def note_company(self, now: float) -> None:
        """Take in that a request came while there was another."""
        self._long_prompts.note_company(now)

    def note_step(self, num_decodes: int, num_prefill_tokens: int, seconds: float) -> None:
        """Take in how long a step took."""
        self._pace.note(num_decodes, num_prefill_tokens, seconds)

    def of_step(self, are_long: Sequence[bool], num_decodes: int) -> int:
        """Return the most tokens of prompts, given which of all are long, beside so many answers.

        A few long prompts beside many answers come at the answers' pace. Others may take twice as much, and
        always ``max_step_seconds``: if the answers of a burst started far apart, they would be computed in
        small batches.
        """
        budget = self._step - num_decodes
        if self._one_shot or not num_decodes:
            return budget
        paced = self._pace.prefill_budget(num_decodes)
        if not all(are_long) or num_decodes < ANSWERS_PER_PROMPT * len(are_long):
            within = self._pace.budget_within(self._step_seconds, num_decodes)
            if within is not None:
                paced = max(within, 2 * (paced or 0))
        return budget if paced is None else _whole(min(budget, paced), num_decodes)

    def of_long(self, are_long: Sequence[bool], num_decodes: int, now: float) -> int:
        """Return the most tokens of long prompts, given the first prompts of a step; call it once a step."""
        if not self._has_parts:
            return self._step
        step = max(self._step, self._pace.budget_within(self._step_seconds, num_decodes) or 0)
        part = self._long_prompts.budget(step, sum(are_long), not all(are_long), num_decodes, now)
        return _whole(min(self._step, part), num_decodes)


def _whole(num_tokens: int, num_decodes: int) -> int:
    """Return the most prompt tokens, of so many, that beside so many answers fill whole groups of rows."""
    whole = (num_tokens + num_decodes) // ROWS * ROWS - num_decodes
    return whole if whole >= min(ROWS, num_tokens) else num_tokens
