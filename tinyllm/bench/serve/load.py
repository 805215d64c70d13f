"""`run_load`: puts a planned load on a server, and returns all that was seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tinyllm.bench.serve.arrivals import Arrivals
from tinyllm.bench.serve.client import Client, Target, open_client
from tinyllm.bench.serve.lag import LagWatch, lag_warnings
from tinyllm.bench.serve.meter import Clock, Meter
from tinyllm.bench.serve.metrics import PERCENTILES, summarize
from tinyllm.bench.serve.records import Limits, RequestRecord, RunResult, TimelinePoint
from tinyllm.bench.serve.samples import Dialogue, Sample
from tinyllm.bench.serve.server_view import load_of, read_metrics
from tinyllm.bench.serve.warnings import warnings_of
from tinyllm.errors import ConfigError, EngineError

__all__ = ["Plan", "run_load"]

SAMPLE_SECONDS: Final = 1.0
"""Between two points of the timeline."""

Gate = asyncio.Semaphore | nullcontext[None]
OnFinished = Callable[[RequestRecord], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """A load: which conversations, to whom, when, and what counts as good."""

    target: Target
    """With its model's name: see `ready_target`."""
    samples: Sequence[Sample]
    arrivals: Arrivals = field(default_factory=Arrivals)
    warmups: Sequence[Sample] = ()
    """Sent before, and not measured."""
    limits: Limits = field(default_factory=Limits)
    percentiles: Sequence[float] = PERCENTILES
    shares_prompts: bool = False
    """Whether prompts have beginnings in common on purpose, so that a cache may know them."""
    sample_seconds: float = SAMPLE_SECONDS
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Goes into the result beside what the plan itself says."""


async def run_load(
    plan: Plan, *, on_finished: OnFinished | None = None, keep_if_interrupted: bool = False
) -> RunResult:
    """Run the plan; ``on_finished`` is called with each request's record when it has ended.

    A request that fails is a record with an error. If the run is cancelled, the result may be of what had
    ended by then. Raises `ConfigError` if the samples do not fit the target or the arrivals.
    """
    _check(plan)
    async with open_client(plan.target) as client:
        await _warm_up(client, plan)
        before = await read_metrics(client)
        run = _Run(plan, client, on_finished, scrape=bool(before))
        lag = LagWatch()
        async with _beside(lag.run()), _beside(run.watch()):
            await run.hold(keep_if_interrupted=keep_if_interrupted)
        by_the_clock = not plan.arrivals.is_closed and plan.arrivals.max_concurrency is None
        client_lag = lag.report(run.requests, by_the_clock=by_the_clock)
        after = await read_metrics(client) if before else {}
    duration = max((record.finished or 0.0 for record in run.requests), default=0.0)
    summary = summarize(run.requests, duration, limits=plan.limits, percentiles=plan.percentiles)
    return RunResult(
        metadata=dict(plan.metadata)
        | {
            "target": plan.target.to_json(),
            "arrivals": plan.arrivals.to_json(),
            "conversations": len(plan.samples),
            "warmups": len(plan.warmups),
            "interrupted": run.interrupted,
        },
        requests=run.requests,
        summary=summary,
        timeline=run.timeline,
        client_lag=client_lag,
        server_metrics={"before": before, "after": after},
        warnings=[
            *(["it was interrupted: what was still open is left out"] if run.interrupted else []),
            *lag_warnings(client_lag),
            *warnings_of(
                run.requests, summary, ignore_eos=plan.target.ignore_eos, shares_prompts=plan.shares_prompts
            ),
        ],
    )


class _Run:
    """A run as it goes on."""

    def __init__(self, plan: Plan, client: Client, on_finished: OnFinished | None, *, scrape: bool) -> None:
        self._plan, self._client, self._on_finished, self._scrape = plan, client, on_finished, scrape
        self._clock, self._meter = Clock(), Meter()
        samples = plan.samples
        if plan.arrivals.use_timestamps:
            samples = sorted(samples, key=lambda sample: sample.timestamp or 0.0)
        self._work = [(sample, _records(place, sample)) for place, sample in enumerate(samples)]
        self.requests = [record for _, records in self._work for record in records]
        for index, record in enumerate(self.requests):
            record.index = index
        self.timeline: list[TimelinePoint] = []
        self.interrupted = False
        """It was cancelled, and what had not ended by then is left out of `requests`."""

    async def hold(self, *, keep_if_interrupted: bool) -> None:
        """Hold every conversation, or those that end before it is cancelled."""
        try:
            if self._plan.arrivals.is_closed:
                await self._closed_loop(self._plan.arrivals.max_concurrency or 1)
            else:
                await self._open_loop()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not keep_if_interrupted or task is None:
                raise
            task.uncancel()
            self.interrupted = True
            self.requests = [record for record in self.requests if record.finished is not None]

    async def watch(self) -> None:
        """Put a point on the timeline again and again, until cancelled."""
        while True:
            now = self._clock.now()
            in_flight, chunks = self._meter.in_flight, self._meter.output_chunks
            load = load_of(await read_metrics(self._client)) if self._scrape else {}
            self.timeline.append(TimelinePoint(t=now, in_flight=in_flight, output_tokens=chunks, **load))
            every = self._plan.sample_seconds
            await self._clock.until((now // every + 1) * every)

    async def _closed_loop(self, concurrency: int) -> None:
        waiting = iter(self._work)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(self._work))):
                group.create_task(self._work_off(waiting))

    async def _work_off(self, waiting: Iterator[tuple[Sample, list[RequestRecord]]]) -> None:
        for sample, records in waiting:
            await self._converse(sample, records, self._clock.now())

    async def _open_loop(self) -> None:
        arrivals = self._plan.arrivals
        stamps = [sample.timestamp for sample in self._plan.samples if sample.timestamp is not None]
        limit = arrivals.max_concurrency
        gate = asyncio.Semaphore(limit) if limit else nullcontext()
        async with asyncio.TaskGroup() as group:
            for due, (sample, records) in zip(
                arrivals.times(len(self._work), stamps), self._work, strict=True
            ):
                await self._clock.until(due)
                group.create_task(self._when_let(gate, sample, records, due))

    async def _when_let(
        self,
        gate: asyncio.Semaphore | nullcontext[None],
        sample: Sample,
        records: list[RequestRecord],
        due: float,
    ) -> None:
        async with gate:
            await self._converse(sample, records, due)

    async def _converse(self, sample: Sample, records: list[RequestRecord], due: float) -> None:
        """Hold a conversation: each turn is sent once the one before it is answered, and contains it."""
        dialogue = Dialogue(self._plan.target.backend)
        for turn, record in zip(sample.turns, records, strict=True):
            record.scheduled = due
            if record.turn and not records[record.turn - 1].ok:
                record.error, record.message = "not_sent", "an earlier turn of its conversation failed"
                record.finished = due
            else:
                ask = dialogue.ask(turn.prompt)
                text = await self._client.stream(ask, turn.max_tokens, record, self._clock, self._meter)
                dialogue.answer(text)
                due = record.finished or due
            if self._on_finished is not None:
                self._on_finished(record)


def _records(conversation: int, sample: Sample) -> list[RequestRecord]:
    return [
        RequestRecord(index=0, label=sample.label, conversation=conversation, turn=turn)
        for turn in range(len(sample.turns))
    ]


def _check(plan: Plan) -> None:
    """Refuse what would fail midway."""
    if not plan.samples:
        raise ConfigError("there is nothing to send: the dataset has no prompt that fits")
    if not plan.target.model:
        raise ConfigError("the target has no model: name it, or ask the server with ready_target()")
    for sample in (*plan.samples, *plan.warmups):
        dialogue = Dialogue(plan.target.backend)
        for turn in sample.turns:
            dialogue.ask(turn.prompt)
    stamped = sum(sample.timestamp is not None for sample in plan.samples)
    if plan.arrivals.use_timestamps and stamped < len(plan.samples):
        raise ConfigError("not every prompt of the dataset has a timestamp to replay: use --request-rate")


async def _warm_up(client: Client, plan: Plan) -> None:
    """Send the warm-ups, as many at once as the plan may."""
    gate = asyncio.Semaphore(plan.arrivals.max_concurrency or len(plan.warmups) or 1)
    clock, meter = Clock(), Meter()

    async def send(sample: Sample) -> None:
        turn = sample.turns[0]
        async with gate:
            ask = Dialogue(plan.target.backend).ask(turn.prompt)
            record = RequestRecord(index=-1)
            await client.stream(ask, turn.max_tokens, record, clock, meter)
        if not record.ok:
            raise EngineError(f"a warm-up request failed: {record.error}: {record.message}")

    await asyncio.gather(*map(send, plan.warmups))


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do some work beside the block, and stop it after."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
