"""`Scheduler`: which tokens of which requests the next step computes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice

from tinyllm.core.admission import Admission
from tinyllm.core.beginnings import Beginnings
from tinyllm.core.fair_share import prefill_shares
from tinyllm.core.integrity import require
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.prompt_budget import PromptBudget
from tinyllm.core.request import Request, RequestStatus
from tinyllm.core.request_queue import RequestQueue, rank_of
from tinyllm.core.scheduler_config import SchedulerConfig
from tinyllm.core.stall import has_room, may_sample
from tinyllm.core.step import (
    ModelRunnerOutput,
    RequestUpdate,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
)
from tinyllm.core.stopping import stop_status
from tinyllm.core.timeouts import due_time, timeout_status
from tinyllm.errors import ContextLengthError, InvalidRequestError

__all__ = ["Scheduler", "SchedulerConfig"]


class Scheduler:
    """Lets ``num_computed_tokens`` of every request catch up with its ``num_tokens``; there are no phases.

    A step serves, within ``max_num_batched_tokens``: each running request that lacks one token, so that those
    that decode get one in every step; then prompts, as much as `PromptBudget` allows beside them, up to
    ``max_num_partial_prefills`` at once with fair shares, new ones in order of rank. A prompt gets all its
    blocks when it is admitted, so only decoding can run out of blocks; then the last in rank is preempted,
    stalled ones first, and computed anew later. In one-shot mode each prompt is computed in a single step:
    the first of a step whatever its length (the one case that exceeds the budget), more if they fit.

    Not thread-safe: the executor thread owns it. `check_length` alone reads only constants.
    """

    def __init__(
        self, config: SchedulerConfig, kv: KVCacheManager, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.config, self.kv, self.clock = config, kv, clock
        self.requests: dict[str, Request] = {}
        """Every request that is not finished, by id."""
        self.waiting = RequestQueue()
        self.running = RequestQueue()
        self.num_preemptions = 0
        """Of all requests so far."""
        self._admission = Admission(config, kv, self.running)
        self._beginnings = Beginnings(kv, self._admission)
        self._one_shot = config.prefill_mode == "one-shot"
        self._max_prefills = 1 if self._one_shot else config.max_num_partial_prefills
        self._budget = PromptBudget(config)
        self._numbers = count()
        self._next_due = math.inf
        """No request times out before this."""

    # ------------------------------------------------------------------ requests come and go

    @property
    def capacity(self) -> int:
        """Most tokens, prompt and answer, that one request may have."""
        return min(self.config.max_model_len, self.kv.capacity)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait to run, for the first time or again."""
        return len(self.waiting)

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens of those."""
        return self.waiting.num_prompt_tokens

    @property
    def num_stalled(self) -> int:
        """Requests that wait for their reader."""
        return sum(request.stalled_since is not None for request in self.requests.values())

    def has_work(self) -> bool:
        """Whether there is any request. What can be done for them now, only `schedule` finds out."""
        return bool(self.requests)

    def can_accept(self, num_requests: int, num_tokens: int) -> bool:
        """Whether so many requests and prompt tokens more fit the bounds on waiting.

        Requests for which there is a free seat do not count as waiting, and an empty queue takes any prompt.
        """
        free_seats = self._admission.max_running - self.num_running
        return self.num_waiting + num_requests <= self.config.max_waiting_requests + free_seats and (
            self.num_waiting == 0 or self.num_waiting_tokens + num_tokens <= self.config.max_waiting_tokens
        )

    def check_length(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise `InvalidRequestError` for an empty prompt, `ContextLengthError` for what can never fit."""
        if num_prompt_tokens < 1:
            raise InvalidRequestError("the prompt has no tokens; give at least one", param="prompt")
        if num_prompt_tokens + max_tokens > self.capacity:
            limit = "context" if self.capacity == self.config.max_model_len else "KV cache"
            raise ContextLengthError(
                f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}: together "
                f"{num_prompt_tokens + max_tokens}, but the {limit} holds {self.capacity}; "
                f"shorten the prompt or lower max_tokens",
                param="prompt" if num_prompt_tokens > self.capacity else "max_tokens",
            )

    def add_request(self, request: Request) -> None:
        """Queue a new request; its leader, if it has one, comes first.

        Raises what `check_length` raises, and `InvalidRequestError` if its id is in use.
        """
        self.check_length(request.num_prompt_tokens, request.max_tokens)
        if request.request_id in self.requests:
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use; choose another", param="request_id"
            )
        if self.requests and request.leader is None:
            self._budget.note_company(self.clock())
        request.rank = rank_of(request, self.config.priority_ageing, next(self._numbers))
        self.requests[request.request_id] = request
        self.waiting.add(request)
        self._next_due = min(self._next_due, self._due(request))

    def abort(self, request_id: str) -> Request | None:
        """End a request, wherever it is. Returns it, or None if there is none with this id (any more)."""
        request = self.requests.get(request_id)
        if request is not None:
            self.finish(request, RequestStatus.FINISHED_ABORTED)
        return request

    def finish(self, request: Request, status: RequestStatus) -> bool:
        """End a request and free its blocks now. False, and nothing done, if it has ended already."""
        if self.requests.get(request.request_id) is not request:
            return False
        del self.requests[request.request_id]
        (self.running if request.status is RequestStatus.RUNNING else self.waiting).remove(request)
        self.kv.free(request)
        request.status = status
        return True

    # ------------------------------------------------------------------ time

    def next_wakeup(self) -> float | None:
        """When `schedule` must be called even if nothing else happens: the next timeout. None: never."""
        due = self._earliest_due()
        return None if due == math.inf else due

    def _earliest_due(self) -> float:
        return min(map(self._due, self.requests.values()), default=math.inf)

    def _due(self, request: Request) -> float:
        return due_time(request, self.config.stall_timeout)

    def _expire(self, now: float, output: SchedulerOutput) -> None:
        """End what has timed out. Looks at every request, but only when one may be due."""
        if now < self._next_due:
            return
        for request in list(self.requests.values()):
            if request.stalled_since is not None:
                may_sample(request, now)  # its reader may have read meanwhile
            status = timeout_status(request, self.config.stall_timeout, now)
            if status is not None:
                self.finish(request, status)
                output.ended.append(request)
        self._next_due = self._earliest_due()

    def _may_sample(self, request: Request, now: float) -> bool:
        if may_sample(request, now):
            return True
        self._next_due = min(self._next_due, self._due(request))
        return False

    # ------------------------------------------------------------------ before a step

    def schedule(self) -> SchedulerOutput:
        """Plan the next step.

        Nothing scheduled means that nothing can be done before `next_wakeup`, a new request, or a reader that
        reads (``credit.stalled`` tells it to wake the caller).
        """
        now = self.clock()
        output = SchedulerOutput(started=now)
        self._expire(now, output)
        prefills = self._schedule_decodes(output, now)
        output.num_decodes = len(output.scheduled)
        self._beginnings.begin_step(prefills)
        prompts = chain(prefills, islice(self.waiting, self._admission.max_running - self.num_running))
        are_long = [self._admission.is_long(request) for request in prompts]
        budget = self._budget.of_step(are_long, output.num_decodes)
        self._schedule_prefills(prefills, budget, output, now)
        return output

    def _schedule_decodes(self, output: SchedulerOutput, now: float) -> list[Request]:
        """Schedule running requests that lack one token; return those that lack more."""
        prefills = []
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING:
                continue  # preempted for one before it
            if len(request.token_ids) - request.num_computed_tokens > 1:
                prefills.append(request)
            elif self._may_sample(request, now) and self._grow(request, output):
                self._plan(request, 1, output)
        return prefills

    def _grow(self, request: Request, output: SchedulerOutput) -> bool:
        """Get a slot for the request's next token, at the cost of others; False if it is preempted itself."""
        while not self.kv.allocate_slots(request, 1):
            # What is scheduled in this step already ranks before this request, so it is never chosen.
            victim = self._last_stalled() or next(reversed(self.running))
            self._preempt(victim, output)
            if victim is request:
                return False
        return True

    def _schedule_prefills(
        self, group: list[Request], budget: int, output: SchedulerOutput, now: float
    ) -> None:
        """Divide the budget among prompts, running ones first, ``max_num_partial_prefills`` of them at once.

        Those that are done within the budget make room for the next ones.
        """
        # Blocks that were just taken from one request are not given to a new one.
        candidates = iter([] if output.preempted else list(self.waiting))
        longest: int | None = None
        partial: list[Request] = []
        long_budget: int | None = None
        while True:
            size = min(self._max_prefills - len(partial), budget)
            wants = [self._num_tokens_left(request) for request in group]
            are_long = [self._admission.is_long(request) for request in group]
            while len(group) < size and _sum_of_shorts(wants, are_long) < budget:
                request = self._admit_next(candidates, [*partial, *group], longest, output, now)
                if request is None:
                    break
                group.append(request)
                wants.append(self._num_tokens_left(request))
                are_long.append(self._admission.is_long(request))
            if long_budget is None and any(are_long):
                long_budget = self._budget.of_long(are_long, output.num_decodes, now)
            shares = wants if self._one_shot else prefill_shares(wants, are_long, budget, long_budget or 0)
            for request, is_long, num_new_tokens in zip(group, are_long, shares, strict=True):
                if num_new_tokens:
                    self._plan(request, num_new_tokens, output)
                if request.num_computed_tokens + num_new_tokens < request.num_tokens:
                    partial.append(request)  # also where only the row is left that samples and waits for room
                if is_long and long_budget:
                    long_budget -= num_new_tokens
            budget -= sum(shares)
            if len(group) < size or budget <= 0 or len(partial) >= self._max_prefills:
                return
            group = []
            if self._one_shot:
                longest = budget

    def _num_tokens_left(self, request: Request) -> int:
        """Return how many tokens may be computed now: the row that samples waits for credit."""
        left = request.num_tokens - request.num_computed_tokens
        return left if has_room(request) else left - 1

    def _plan(self, request: Request, num_new_tokens: int, output: SchedulerOutput) -> None:
        start = request.num_computed_tokens
        end = start + num_new_tokens
        complete = end == len(request.token_ids)
        table = self.kv.block_table(request)
        if not complete:
            table = table[: self.kv.blocks_for(end)]
        samples = complete and request.max_tokens > 0
        output.scheduled.append(ScheduledRequest(request, start, num_new_tokens, table, samples))

    # ------------------------------------------------------------------ admission and preemption

    def _admit_next(
        self,
        candidates: Iterator[Request],
        prefills: list[Request],
        longest: int | None,
        output: SchedulerOutput,
        now: float,
    ) -> Request | None:
        """Start the next waiting request; None if there is none, or if it lacks a seat or blocks.

        It is overtaken only while it waits for what others compute, its reader, or a place for long prompts.
        Stalled requests give up theirs for it. ``longest`` bounds the tokens left to compute, if given.
        """
        awaiting = self._beginnings
        for request in candidates:
            if self._admission.waits_for_leader(request) or not self._may_sample(request, now):
                continue
            if not self._admission.leaves_room(request, [*prefills, *awaiting.waiting]):
                continue
            if awaiting.are_awaited(request):
                continue
            while longest is None or self._admission.num_uncached_tokens(request) <= longest:
                if self._admission.start(
                    request, num_seats_kept=len(awaiting.waiting), num_blocks_kept=awaiting.num_blocks
                ):
                    self._run(request, now)
                    awaiting.note_started(request)
                    return request
                # What is kept for others is not taken from those that stall.
                stalled = None if awaiting.waiting else self._last_stalled()
                if stalled is None:
                    break
                self._preempt(stalled, output)  # which may free blocks that this one would have shared
            return None
        return None

    def _run(self, request: Request, now: float) -> None:
        self.waiting.remove(request)
        self.running.add(request)
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
            request.num_cached_tokens = request.num_computed_tokens
            self.kv.stats.record(request.num_tokens, request.num_cached_tokens, self.kv.block_size)

    def _last_stalled(self) -> Request | None:
        return next((r for r in reversed(self.running) if r.stalled_since is not None), None)

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        """Take the blocks of a running request; it keeps its tokens and is computed anew later."""
        self.running.remove(request)
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(request)
        output.preempted.append(request)

    # ------------------------------------------------------------------ after a step

    def update_from_output(
        self, output: SchedulerOutput, runner_output: ModelRunnerOutput
    ) -> list[RequestUpdate]:
        """Take in what a step computed; return, in batch order, what there is to tell of each request.

        Results of requests that have ended since `schedule` are dropped.
        """
        now = self.clock()
        num_prefill_tokens = output.num_scheduled_tokens - output.num_decodes
        self._budget.note_step(output.num_decodes, num_prefill_tokens, now - output.started)
        updates = []
        for item in output.scheduled:
            request = item.request
            if request.status is not RequestStatus.RUNNING:
                continue
            # One that samples must have a result; another has one only if its prompt could not be scored.
            sampled = runner_output.sampled.get(request.request_id)
            if sampled is not None and sampled.error is not None:
                self.finish(request, RequestStatus.FINISHED_ERROR)
                updates.append(RequestUpdate(request, error=sampled.error))
                continue
            request.num_computed_tokens = item.start + item.num_new_tokens
            self.kv.commit(request)
            update = RequestUpdate(request)
            if request.wants_prompt_scores:
                self._take_prompt_scores(item, runner_output, update)
            if item.samples:
                self._take_sample(request, runner_output.sampled[request.request_id], update, now)
            elif request.num_computed_tokens == request.num_tokens:  # max_tokens is 0
                self.finish(request, RequestStatus.FINISHED_LENGTH)
            elif not update.prompt_scores:
                continue
            updates.append(update)
        return updates

    def _take_prompt_scores(
        self, item: ScheduledRequest, runner_output: ModelRunnerOutput, update: RequestUpdate
    ) -> None:
        """Report the scores that are new: after a preemption, some rows are computed once more."""
        request = item.request
        scores = runner_output.prompt_scores.get(request.request_id, [])
        update.prompt_scores = scores[max(0, request.num_prompt_scores - item.start) :]
        request.num_prompt_scores += len(update.prompt_scores)

    def _take_sample(
        self, request: Request, sampled: SampledToken, update: RequestUpdate, now: float
    ) -> None:
        """Append the sampled token, and finish the request if it was the last."""
        request.token_ids.append(sampled.token_id)
        update.token_id, update.scores = sampled.token_id, sampled.scores
        request.last_token_time = now
        if request.first_token_time is None:
            request.first_token_time = now
        status, update.stop_reason = stop_status(request)
        if status is not None:
            self.finish(request, status)

    # ------------------------------------------------------------------ integrity

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the books of scheduler, manager or pool contradict themselves."""
        self.waiting.check_integrity()
        self.running.check_integrity()
        self.kv.check_integrity(self.running)
        queued = [*self.waiting, *self.running]
        require(len(queued) == len(self.requests), "a request is lost or twice in the queues")
        require(all(self.requests.get(r.request_id) is r for r in queued), "a queue has an unknown request")
        require(len(self.running) <= self._admission.max_running, "more requests run than allowed")
        for request in self.running:
            where = f"request {request.request_id}"
            require(request.status is RequestStatus.RUNNING, f"{where} runs, but is {request.status}")
            require(request.num_computed_tokens < request.num_tokens, f"{where} has nothing to compute")
        for request in self.waiting:
            where = f"request {request.request_id}"
            waits = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            require(waits and request.num_computed_tokens == 0, f"{where} waits, but is {request.status}")
        require(
            self._next_due <= self._earliest_due(),
            "a timeout is missed",
        )


def _sum_of_shorts(wants: Sequence[int], are_long: Sequence[bool]) -> int:
    return sum(want for want, is_long in zip(wants, are_long, strict=True) if not is_long)
