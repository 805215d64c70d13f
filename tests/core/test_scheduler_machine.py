"""Everything at once: hypothesis adds, steps, reads, aborts and waits, against what each answer is alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.core.harness import EOS, alone, examples, make_engine, make_request
from tinyllm.core.admission import MAX_PREEMPTIONS
from tinyllm.core.request import Request, RequestStatus, StreamCredit
from tinyllm.core.step import (
    ModelRunnerOutput,
    RequestUpdate,
    SampledToken,
    ScheduledRequest,
    SchedulerOutput,
)
from tinyllm.errors import ContextLengthError
from tinyllm.params import SamplingParams

STALL_TIMEOUT = 8.0
BUDGET = 6
MAX_MODEL_LEN = 24


@dataclass
class Before:
    """What a step must do with a request, seen just before it."""

    left: int
    credit: bool
    preemptions: int


def prompts_of(output: SchedulerOutput) -> list[ScheduledRequest]:
    """Return what was planned of prompts."""
    return output.scheduled[output.num_decodes :]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.sampled_from([8, 10, 14, 30]),
        block_size=st.sampled_from([1, 2, 3]),
        caching=st.booleans(),
        bound=st.sampled_from([None, 3]),
        seats=st.sampled_from([2, 4, 8]),
        partial=st.sampled_from([1, 2, 4]),
        threshold=st.sampled_from([0, 3]),
        mode=st.sampled_from(["chunked", "chunked", "one-shot"]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        caching: bool,
        bound: int | None,
        seats: int,
        partial: int,
        threshold: int,
        mode: str,
    ) -> None:
        self.partial, self.one_shot = partial, mode == "one-shot"
        self.aside: set[Request] = set()
        self.long = threshold or BUDGET
        self.engine = make_engine(
            num_blocks,
            block_size,
            enable_prefix_caching=caching,
            max_cached_blocks=bound,
            max_model_len=MAX_MODEL_LEN,
            max_num_seqs=seats,
            max_num_batched_tokens=BUDGET,
            max_num_partial_prefills=partial,
            long_prefill_threshold=threshold,
            prefill_mode=mode,
            stall_timeout=STALL_TIMEOUT,
        )
        self.accepted: list[Request] = []
        self.ended: dict[Request, RequestStatus] = {}
        self.stalled_preemptions: dict[Request, int] = {}
        self.credits: list[StreamCredit] = []

    # -------------------------------------------------------------- what clients do

    @rule(
        prompts=st.lists(
            st.tuples(st.sampled_from([(1,), (1, 2), (3,)]), st.integers(1, 14)), min_size=1, max_size=4
        ),
        max_tokens=st.sampled_from([0, 1, 2, 5, 12, 18]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        stops=st.sampled_from([True, False, False]),
        priority=st.sampled_from([0, 0, 0, -2, 3]),
        salt=st.sampled_from(["", "", "x"]),
        capacity=st.sampled_from([None, None, 1, 2, 5]),
        deadline=st.sampled_from([None, None, None, 15.0]),
        queue_deadline=st.sampled_from([None, None, None, 5.0]),
        scores=st.sampled_from([False, False, True]),
    )
    def submit(self, prompts: list[tuple[tuple[int, ...], int]], **options: Any) -> None:
        """Submit some prompts that begin alike, all with the same options."""
        for family, length in prompts:
            self.submit_one((family * length)[:length], **options)

    def submit_one(
        self,
        prompt: tuple[int, ...],
        max_tokens: int,
        n: int,
        stops: bool,
        priority: int,
        salt: str,
        capacity: int | None,
        deadline: float | None,
        queue_deadline: float | None,
        scores: bool,
    ) -> None:
        now = self.engine.clock.now
        stop_token_ids = (5, 6) if stops else ()
        params = SamplingParams(n=n, stop_token_ids=stop_token_ids, prompt_logprobs=0 if scores else None)
        credit = None if capacity is None else StreamCredit(capacity)
        leader: Request | None = None
        for index in range(n):
            request = make_request(
                prompt,
                max_tokens,
                params=params,
                eos=[EOS] if stops else [],
                arrival=now,
                priority=priority,
                deadline=None if deadline is None else now + deadline,
                queue_deadline=None if queue_deadline is None else now + queue_deadline,
                salt=salt,
                leader=leader,
                index=index,
                credit=credit,
            )
            try:
                self.engine.scheduler.add_request(request)
            except ContextLengthError:
                assert len(prompt) + max_tokens > min(MAX_MODEL_LEN, self.engine.kv.capacity)
                return
            leader = leader or request
            self.accepted.append(request)
        if credit is not None:
            self.credits.append(credit)

    @rule(which=st.integers(0, 99), number=st.integers(1, 5))
    def read(self, which: int, number: int) -> None:
        unread = [credit for credit in self.credits if credit.sent > credit.read]
        if unread:
            credit = unread[which % len(unread)]
            credit.read = min(credit.sent, credit.read + number)

    @rule(seconds=st.sampled_from([1.0, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.engine.clock.now += seconds

    @rule(which=st.integers(0, 99))
    def abort(self, which: int) -> None:
        if not self.accepted:
            return
        request = self.accepted[-1 - which % len(self.accepted)]
        was_live = request not in self.ended
        assert (self.engine.scheduler.abort(request.request_id) is request) == was_live
        if was_live:
            self.end(request)
        self.engine.scheduler.check_integrity()

    # -------------------------------------------------------------- steps

    @rule(number=st.integers(1, 4))
    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    @rule(which=st.integers(0, 99), fault=st.sampled_from(["abort", "error", "stop string"]))
    def step_with(self, which: int, fault: str) -> None:
        """A step in which one request is aborted, fails or is ended by the engine."""
        live = list(self.engine.scheduler.requests.values())
        if live:
            self.step(live[which % len(live)], fault)

    def step(self, victim: Request | None = None, fault: str = "") -> SchedulerOutput:
        engine, scheduler = self.engine, self.engine.scheduler
        before = {request: self.look(request) for request in scheduler.running}
        stalled = {r for r in scheduler.requests.values() if r.credit is not None and r.credit.available < 1}
        output = scheduler.schedule()
        scheduler.check_integrity()
        for request in output.ended:
            self.check_timeout(request)
            self.end(request)
        for request in output.preempted:
            self.stalled_preemptions[request] = self.stalled_preemptions.get(request, 0) + (
                request in stalled
            )
        self.check_plan(output, before)
        result = engine.runner.execute_model(output)
        if victim in self.ended:
            victim = None
        if victim is not None and fault == "abort":
            assert scheduler.abort(victim.request_id) is victim
            self.end(victim)
        if victim is not None and fault == "error" and victim.request_id in result.sampled:
            result.sampled[victim.request_id] = SampledToken(0, error=ValueError())
        self.check_updates(output, result, scheduler.update_from_output(output, result))
        scheduler.check_integrity()
        stops = fault == "stop string" and victim is not None and victim.num_output_tokens > 0
        if victim is not None and stops and victim not in self.ended:
            assert scheduler.finish(victim, RequestStatus.FINISHED_STOPPED)
            self.end(victim)
            scheduler.check_integrity()
        return output

    def look(self, request: Request) -> Before:
        credit = request.credit is None or request.credit.available >= 1 or request.max_tokens == 0
        return Before(request.num_tokens - request.num_computed_tokens, credit, request.num_preemptions)

    def end(self, request: Request) -> None:
        assert request not in self.ended, "a request ends twice"
        assert request.status.is_finished
        assert request.request_id not in self.engine.scheduler.requests
        self.ended[request] = request.status

    def check_timeout(self, request: Request) -> None:
        now = self.engine.clock.now
        if request.status is RequestStatus.FINISHED_STALLED:
            assert request.credit is not None
            assert request.credit.available < max(1, request.credit.capacity)
            assert request.stalled_since is not None
            assert now >= request.stalled_since + STALL_TIMEOUT
            return
        assert request.status is RequestStatus.FINISHED_TIMEOUT
        due = [time for time in (request.deadline, request.queue_deadline) if time is not None]
        assert min(due) <= now

    def check_plan(self, output: SchedulerOutput, before: dict[Request, Before]) -> None:
        planned = {item.request: item for item in output.scheduled}
        assert len(planned) == len(output.scheduled)
        assert len(set(output.preempted)) == len(output.preempted)
        assert not set(output.preempted) & set(planned)
        prompts = [item for item in output.scheduled if item.num_new_tokens > 1]
        total = output.num_scheduled_tokens
        if self.one_shot and prompts:
            assert total - prompts[0].num_new_tokens <= BUDGET
            assert total <= BUDGET or len(prompts) == 1
        else:
            assert total <= BUDGET
        for item in output.scheduled:
            assert item.start == item.request.num_computed_tokens
            credit = item.request.credit
            assert not item.samples or credit is None or credit.available >= 1
        gone = set(output.preempted) | set(output.ended)
        is_long = self.engine.scheduler._admission.is_long
        has_short = any(not is_long(item.request) for item in prompts_of(output))
        aside: set[Request] = set()
        for request, seen in before.items():
            if request in gone:
                continue
            if seen.left == 1:  # who decodes gets a token in every step, given credit
                assert (request in planned) == seen.credit
            elif seen.left > self.long and request not in planned:
                assert has_short, "a long prompt gets nothing"
                assert request not in self.aside, "a long prompt gets nothing twice in a row"
                aside.add(request)
        self.aside = aside
        unfinished = [
            item
            for item in output.scheduled
            if item.start + item.num_new_tokens < item.request.num_prompt_tokens
        ]
        assert len(unfinished) <= (1 if self.one_shot else self.partial)
        self.check_preemptions(output, before)
        if not output.scheduled:
            self.check_idle()

    def check_preemptions(self, output: SchedulerOutput, before: dict[Request, Before]) -> None:
        for request in output.preempted:
            stalled = self.stalled_preemptions[request]
            event("preempted because stalled" if stalled else "preempted")
            assert request.num_preemptions - stalled <= MAX_PREEMPTIONS
            if request in before and before[request].credit:
                assert before[request].preemptions < MAX_PREEMPTIONS
        live = [r for r in before if r not in self.ended and before[r].credit]
        if live:  # the oldest that can go on does
            oldest = min(live, key=lambda request: request.rank)
            assert oldest not in output.preempted

    def check_idle(self) -> None:
        """Nothing is planned: then everyone waits for a reader, who will wake the engine, or for a leader."""
        scheduler = self.engine.scheduler
        for request in scheduler.requests.values():
            leader, credit = request.leader, request.credit
            if leader is not None and leader not in self.ended:
                continue
            assert credit is not None
            assert credit.stalled
            assert credit.available < max(1, credit.capacity // 2)
            assert request.stalled_since is not None
        if scheduler.has_work():
            wakeup = scheduler.next_wakeup()
            assert wakeup is not None
            assert wakeup > self.engine.clock.now

    def check_updates(
        self, output: SchedulerOutput, result: ModelRunnerOutput, updates: list[RequestUpdate]
    ) -> None:
        order = [item.request for item in output.scheduled]
        told = [update.request for update in updates]
        assert told == [request for request in order if request in set(told)]
        for update in updates:
            request = update.request
            assert request not in self.ended
            if update.token_id is not None:
                assert request.token_ids[-1] == update.token_id
                expected, _ = alone(request)
                assert request.output_token_ids == expected[: request.num_output_tokens]
            if request.status.is_finished:
                self.end(request)
        for item in output.scheduled:
            if item.samples and item.request not in self.ended:
                assert item.request in told
        self.engine.send(updates)

    # -------------------------------------------------------------- the end

    def teardown(self) -> None:
        """Let every reader read: all that is accepted ends, once, with the answer it gives alone."""
        if not hasattr(self, "engine"):
            return
        most = sum(r.num_prompt_tokens + r.max_tokens for r in self.accepted) * (MAX_PREEMPTIONS + 1) + 10
        for _ in range(most):
            for credit in self.credits:
                credit.read = credit.sent
            if not self.engine.scheduler.has_work():
                break
            output = self.step()
            assert output.scheduled or output.ended, "an empty step although there is work"
        assert len(self.ended) == len(self.accepted)
        natural = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH)
        for request, status in self.ended.items():
            event(status.name)
            expected, alone_status = alone(request)
            assert request.status is status
            assert request.output_token_ids == expected[: request.num_output_tokens]
            if status is RequestStatus.FINISHED_LENGTH:
                assert (request.output_token_ids, status) == (expected, alone_status)
            if status in natural and request.wants_prompt_scores:
                raise AssertionError("a prompt's scores are missing")
        assert self.engine.kv.num_free_blocks == self.engine.kv.num_blocks
        assert self.engine.scheduler.num_waiting_tokens == 0
        assert self.engine.scheduler.next_wakeup() is None


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = examples(10, steps=80)
