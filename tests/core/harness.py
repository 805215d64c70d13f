"""What the tests of the core share: requests, a clock, and a runner that notices every wrong read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from hypothesis import HealthCheck, settings

from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request, RequestStatus, StreamCredit
from tinyllm.core.scheduler import Scheduler, SchedulerConfig
from tinyllm.core.step import ModelRunnerOutput, RequestUpdate, SampledToken, SchedulerOutput, TokenScores
from tinyllm.params import SamplingParams

VOCAB_SIZE = 24
EOS = 0
FACTOR = float(os.environ.get("TINYLLM_TEST_EXAMPLES", "1"))

_numbers = count()


def examples(number: int, steps: int) -> settings:
    """Settings of a state machine: ``number`` examples, times TINYLLM_TEST_EXAMPLES, of ``steps`` steps."""
    return settings(
        max_examples=max(1, round(number * FACTOR)),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def make_request(
    prompt: int | Iterable[int] = 5,
    max_tokens: int = 4,
    *,
    request_id: str | None = None,
    params: SamplingParams | None = None,
    eos: Iterable[int] = (),
    arrival: float = 100.0,
    priority: int = 0,
    deadline: float | None = None,
    queue_deadline: float | None = None,
    salt: str = "",
    leader: Request | None = None,
    index: int = 0,
    credit: StreamCredit | None = None,
) -> Request:
    """A request whose prompt is given, or has so many tokens that no other prompt begins with."""
    number = next(_numbers)
    if isinstance(prompt, int):
        prompt = [1000 + number] * prompt
    return Request(
        request_id=request_id or f"r{number}",
        prompt_token_ids=list(prompt),
        params=params or SamplingParams(),
        max_tokens=max_tokens,
        eos_token_ids=frozenset(eos),
        arrival_time=arrival,
        priority=priority,
        deadline=deadline,
        queue_deadline=queue_deadline,
        cache_salt=salt,
        leader=leader,
        index=index,
        credit=credit,
    )


def _digest(before: int, token_id: int) -> int:
    return hash((before, token_id))


def _seed(request: Request) -> int:
    return sum(request.cache_salt.encode()) + 1


def _next_token(digest: int, index: int) -> int:
    """What the fake model samples: from all tokens before it and, like a seed, from the answer's index."""
    return hash((digest, index)) % VOCAB_SIZE


def alone(request: Request) -> tuple[list[int], RequestStatus]:
    """What the request generates if nothing else ever runs."""
    params, output = request.params, list[int]()
    digest = _seed(request)
    for token_id in request.prompt_token_ids:
        digest = _digest(digest, token_id)
    while len(output) < request.max_tokens:
        token_id = _next_token(digest, request.index)
        digest = _digest(digest, token_id)
        output.append(token_id)
        stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(request.eos_token_ids))
        if token_id in stops and len(output) > params.min_tokens:
            return output, RequestStatus.FINISHED_STOPPED
    return output, RequestStatus.FINISHED_LENGTH


class FakeRunner:
    """Stores at each slot a digest of all tokens up to there, as keys and values depend on them.

    Before a step it reads back everything the request claims to have computed, so a block that is shared
    wrongly, reused too early or never written is noticed where it happens.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self.block_size = kv.block_size
        self.slots: list[int | None] = [None] * kv.capacity
        self._digests: dict[Request, list[int]] = {}

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        result = ModelRunnerOutput()
        size = self.block_size
        for item in output.scheduled:
            request, start, end = item.request, item.start, item.start + item.num_new_tokens
            assert item.num_new_tokens > 0
            assert len(item.block_table) == -(-end // size)
            expected = self._expected(request, end)
            slots = [item.block_table[i // size] * size + i % size for i in range(end)]
            assert [self.slots[slot] for slot in slots[:start]] == expected[:start], "stale keys and values"
            for slot, digest in zip(slots[start:], expected[start:], strict=True):
                self.slots[slot] = digest
            if request.wants_prompt_scores:
                rows = range(start, min(end, request.num_prompt_tokens - 1))
                result.prompt_scores[request.request_id] = [
                    TokenScores(request.token_ids[row + 1], float(expected[row])) for row in rows
                ]
        for item in output.scheduled:
            end = item.start + item.num_new_tokens
            if item.samples:
                assert end == item.request.num_tokens
                digest = self._digests[item.request][end - 1]
                result.sampled[item.request.request_id] = SampledToken(
                    _next_token(digest, item.request.index)
                )
        return result

    def _expected(self, request: Request, end: int) -> list[int]:
        digests = self._digests.setdefault(request, [])
        while len(digests) < end:
            before = digests[-1] if digests else _seed(request)
            digests.append(_digest(before, request.token_ids[len(digests)]))
        return digests[:end]


@dataclass
class Ran:
    """One step: what was planned, and what came of it."""

    output: SchedulerOutput
    updates: list[RequestUpdate]

    @property
    def tokens(self) -> dict[str, int]:
        return {item.request.request_id: item.num_new_tokens for item in self.output.scheduled}

    @property
    def sampled(self) -> dict[str, int]:
        return {u.request.request_id: u.token_id for u in self.updates if u.token_id is not None}


@dataclass
class Engine:
    """Scheduler, manager, fake runner and clock together; checks the books around every step."""

    kv: KVCacheManager
    scheduler: Scheduler
    runner: FakeRunner
    clock: Clock
    history: list[Ran] = field(default_factory=list)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)

    def step(self) -> Ran:
        self.scheduler.check_integrity()
        output = self.scheduler.schedule()
        self.scheduler.check_integrity()
        updates = self.scheduler.update_from_output(output, self.runner.execute_model(output))
        self.scheduler.check_integrity()
        self.send(updates)
        self.history.append(Ran(output, updates))
        return self.history[-1]

    def send(self, updates: list[RequestUpdate]) -> None:
        """Count one piece for each stream that got tokens."""
        credits = {id(u.request.credit): u.request.credit for u in updates if u.token_id is not None}
        for credit in credits.values():
            if credit is not None:
                assert credit.available >= 1, "a stream overflows"
                credit.sent += 1

    def run_while(self, request: Request) -> None:
        """Step until this request ends."""
        while not request.status.is_finished:
            assert self.step().output.scheduled, "an empty step although there is work"

    def run(self, max_steps: int = 1000) -> list[Ran]:
        """Step until there is no work."""
        for _ in range(max_steps):
            if not self.scheduler.has_work():
                return self.history
            assert self.step().output.scheduled, "an empty step although there is work"
        raise AssertionError(f"not finished after {max_steps} steps")


def make_engine(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    enable_prefix_caching: bool = True,
    max_cached_blocks: int | None = None,
    max_model_len: int = 1000,
    **options: object,
) -> Engine:
    clock = Clock()
    kv = KVCacheManager(
        num_blocks,
        block_size,
        enable_prefix_caching=enable_prefix_caching,
        max_cached_blocks=max_cached_blocks,
        identity=b"test",
    )
    config = SchedulerConfig(max_model_len=max_model_len, **options)  # type: ignore[arg-type]
    return Engine(kv, Scheduler(config, kv, clock), FakeRunner(kv), clock)


def assert_as_alone(*requests: Request) -> None:
    for request in requests:
        output, status = alone(request)
        assert (request.output_token_ids, request.status) == (output, status), request.request_id
