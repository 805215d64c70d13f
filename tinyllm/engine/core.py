"""`EngineCore`: submissions in, steps, deliveries out. Synchronous, and the only owner of all it holds."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from tinyllm.config import EngineConfig
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request, RequestStatus
from tinyllm.core.scheduler import Scheduler, SchedulerConfig
from tinyllm.core.step import ModelRunnerOutput, RequestUpdate, SchedulerOutput
from tinyllm.engine.group import RequestGroup
from tinyllm.engine.loaded import LoadedModel
from tinyllm.engine.messages import Delivery, Submission
from tinyllm.engine.status_log import StatusLog
from tinyllm.errors import (
    RequestAbortedError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    SlowConsumerError,
    TinyLLMError,
)
from tinyllm.metrics import StepStats

__all__ = ["EngineCore", "Runner"]

logger = logging.getLogger("tinyllm.engine")


class Runner(Protocol):
    """What the core needs of a runner (`tinyllm.runner.model_runner.ModelRunner` is one)."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a step. What it raises is a fault of the whole engine."""
        ...


def _nothing() -> None:
    pass


class EngineCore:
    """The engine without threads and event loops: `add` and `abort` requests, `step` until they have ended.

    Everything a step has for one request is one `Delivery`; each added request gets exactly one that is
    ``finished``. A step that raises is the end of the core.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        kv: KVCacheManager,
        runner: Runner,
        *,
        clock: Callable[[], float] = time.monotonic,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.config = config
        self.model = model
        self.kv = kv
        limits = SchedulerConfig.from_engine_config(config, model.info.max_model_len)
        self.scheduler = Scheduler(limits, kv, clock)
        self.context = context
        """What steps must run in, such as ``torch.inference_mode``."""
        self.made_progress = False
        """Whether the last step did anything; if not, only a command, a reader or time can change that."""
        self._runner = runner
        self._clock = clock
        self._groups: dict[str, RequestGroup] = {}
        self._group_of: dict[Request, RequestGroup] = {}
        self._news: dict[RequestGroup, _News] = {}  # what the next deliveries are made of, in order
        self._full: set[RequestGroup] = set()  # those whose stream had no room after their last delivery
        self._stats = StepStats()
        self._status_log = StatusLog(config.status_log_interval)

    @property
    def num_requests(self) -> int:
        """Requests added and not ended; ``n`` answers count once."""
        return len(self._groups)

    def seconds_to_wakeup(self) -> float | None:
        """Seconds until a step is needed though nothing happens (a timeout passes); None if never."""
        wakeup = self.scheduler.next_wakeup()
        return None if wakeup is None else max(0.0, wakeup - self._clock())

    def add(self, submission: Submission) -> None:
        """Take in a checked request. One that the scheduler refuses ends in this step's deliveries."""
        group = RequestGroup(submission, self.model)
        self._groups[group.request_id] = group
        self._group_of.update(dict.fromkeys(group.requests, group))
        try:
            for request in group.requests:
                self.scheduler.add_request(request)
        except TinyLLMError as error:
            self._end(group, error, "error")

    def abort(self, request_id: str) -> None:
        """End a request, in whatever phase; nothing happens to one that is unknown or has ended."""
        group = self._groups.get(request_id)
        if group is None:
            return
        self._stats.cancelled[group.phase] += 1
        self._end(group, RequestAbortedError("the request was aborted"), "abort")

    def reset_prefix_cache(self) -> None:
        """Forget the KV blocks that are kept only for their content."""
        self.kv.reset_prefix_cache()

    def step(self, drain: Callable[[], None] = _nothing) -> list[Delivery]:
        """Compute one step and return what it, and calls since the last one, have for each request.

        ``drain`` is called between the model and its results: what it aborts gets none.
        """
        start = time.perf_counter()
        plan = self.scheduler.schedule()
        scheduled = time.perf_counter()
        self._take_plan(plan)
        done = scheduled
        if plan.scheduled:
            output = self._runner.execute_model(plan)
            drain()
            done = time.perf_counter()
            now = self._clock()
            for update in self.scheduler.update_from_output(plan, output):
                self._take_update(update, now)
            self._stats.timings = dict(output.timings)
        self.made_progress = bool(plan.scheduled or plan.preempted or plan.ended)
        deliveries = self._deliveries()
        if plan.scheduled:
            self._stats.timings["schedule"] = scheduled - start
            self._stats.timings["output"] = time.perf_counter() - done
        self._record(plan)
        if self.config.check_integrity:
            self.scheduler.check_integrity()
        return deliveries

    # A step, in order.

    def _take_plan(self, plan: SchedulerOutput) -> None:
        for request in plan.ended:
            group = self._group_of.get(request)
            if group is not None:
                self._end(group, *_abnormal_end(request))
        for item in plan.scheduled:
            group = self._group_of.get(item.request)  # None: its sibling has just timed out
            if group is not None and not group.started:
                self._start(group)
        self._watch_backpressure()

    def _start(self, group: RequestGroup) -> None:
        group.started = True
        self._news.setdefault(group, _News()).started = True
        leader = group.requests[0]
        self._stats.prompt_tokens += leader.num_prompt_tokens
        if self.kv.enable_prefix_caching and leader.params.prompt_logprobs is None:
            self._stats.prefix_cache_queries += leader.num_prompt_tokens
            self._stats.prefix_cache_hits += leader.num_cached_tokens
            self._stats.prefix_cache_results[self._cache_result(leader)] += 1

    def _cache_result(self, request: Request) -> str:
        if not request.num_cached_tokens:
            return "miss"
        # The last token is computed in any case, so at most a block of what is there is not reused.
        whole = request.num_cached_tokens + self.kv.block_size >= request.num_prompt_tokens
        return "hit" if whole else "partial"

    def _watch_backpressure(self) -> None:
        """Time how long the scheduler passes over requests whose stream is full."""
        for group in list(self._full):
            stalled = group.is_stalled
            if stalled and group.stalled_since is None:
                group.stalled_since = self._clock()
            elif not stalled:
                self._note_backpressure(group)
                if group.has_room:
                    self._full.discard(group)

    def _note_backpressure(self, group: RequestGroup) -> None:
        if group.stalled_since is not None:
            self._stats.backpressure_times.append(self._clock() - group.stalled_since)
            group.stalled_since = None

    def _take_update(self, update: RequestUpdate, now: float) -> None:
        """Turn one answer's news into a piece. Whatever goes wrong here is a fault of this request alone."""
        group = self._group_of.get(update.request)
        if group is None:
            return  # a sibling's fault has just ended it
        if update.error is not None:
            self._end(group, _failure(update.error), "error")
            return
        try:
            piece = group.add(update, now)
        except BaseException as error:  # a Rust panic of the tokenizer is no Exception
            self._end(group, _failure(error), "error")
            return
        if piece is None:
            return
        self._news.setdefault(group, _News())
        self._note_token(group, update)
        if piece.finish_reason is None:
            return
        if not update.request.status.is_finished:  # a stop string, which only the text shows
            self.scheduler.finish(update.request, RequestStatus.FINISHED_STOPPED)
        if group.num_open == 0:
            self._forget(group, piece.finish_reason.value)

    def _note_token(self, group: RequestGroup, update: RequestUpdate) -> None:
        request, stats = update.request, self._stats
        if update.token_id is None or request.last_token_time is None:
            return
        stats.generation_tokens += 1
        previous = group.token_times[request.index]
        group.token_times[request.index] = request.last_token_time
        if previous is None:
            stats.first_token_times.append(request.last_token_time - request.arrival_time)
        else:
            stats.inter_token_times.append(request.last_token_time - previous)

    # The end of a request.

    def _end(self, group: RequestGroup, error: TinyLLMError, reason: str) -> None:
        """End all answers of a request abnormally."""
        for request in group.requests:
            if not request.status.is_finished:
                self.scheduler.finish(request, _STATUS_OF[reason])
        self._news.setdefault(group, _News()).error = error
        self._forget(group, reason)

    def _forget(self, group: RequestGroup, reason: str) -> None:
        """Let go of a request that has ended; its last delivery is in the news."""
        self._note_backpressure(group)
        self._full.discard(group)
        self._stats.finished.append(group.summary(reason, self._clock()))
        del self._groups[group.request_id]
        for request in group.requests:
            del self._group_of[request]
        logger.debug("request %s ended: %s", group.request_id, reason)

    # Results.

    def _deliveries(self) -> list[Delivery]:
        news, self._news = self._news, {}
        deliveries = []
        for group, item in news.items():
            deliveries.append(group.delivery(started=item.started, error=item.error))
            if not group.has_room and group.request_id in self._groups:
                self._full.add(group)
        return deliveries

    def _record(self, plan: SchedulerOutput) -> None:
        stats, self._stats = self._stats, StepStats()
        stats.num_running = self.scheduler.num_running
        stats.num_waiting = self.scheduler.num_waiting
        stats.num_stalled = sum(group.stalled_since is not None for group in self._full)
        stats.kv_cache_usage = self.kv.usage
        stats.scheduled_tokens = plan.num_scheduled_tokens
        stats.preemptions = len(plan.preempted)
        self.model.metrics.record(stats)
        self._status_log.add(stats, self._clock())


@dataclass(slots=True)
class _News:
    """What a step has for one request, beside its pieces."""

    started: bool = False
    error: TinyLLMError | None = None


_STATUS_OF = {
    "abort": RequestStatus.FINISHED_ABORTED,
    "error": RequestStatus.FINISHED_ERROR,
    "timeout": RequestStatus.FINISHED_TIMEOUT,
    "stalled": RequestStatus.FINISHED_STALLED,
}


def _abnormal_end(request: Request) -> tuple[TinyLLMError, str]:
    """Return the error and the reason for how the scheduler ended a request on its own."""
    if request.status is RequestStatus.FINISHED_STALLED:
        return SlowConsumerError(
            "the stream was not read for stall_timeout, so the request was ended"
        ), "stalled"
    queue_deadline, deadline = request.queue_deadline or math.inf, request.deadline or math.inf
    if request.first_scheduled_time is None and queue_deadline <= deadline:
        seconds = queue_deadline - request.arrival_time
        return RequestTimeoutError(
            f"the request did not start within its queue_timeout, {seconds:g} s"
        ), "timeout"
    seconds = deadline - request.arrival_time
    return RequestTimeoutError(f"the request did not finish within its timeout, {seconds:g} s"), "timeout"


def _failure(fault: BaseException) -> RequestError:
    """Return what the request's reader gets; details of foreign faults are in ``__cause__`` only."""
    if isinstance(fault, RequestError):
        return fault
    error = RequestFailedError(f"this request failed ({type(fault).__name__}); others go on")
    error.__cause__ = fault
    return error
