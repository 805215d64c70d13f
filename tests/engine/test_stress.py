"""Bounds and endings under load: back-pressure, lost wake-ups, and the ledger of last words."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

import anyio
import pytest

from tests.engine.conftest import MakeEngine
from tests.engine.support import num_used_blocks, read_all, wait_idle, wait_stalled
from tests.fakes import FakeRunner
from tinyllm import (
    AsyncEngine,
    EngineDeadError,
    EngineError,
    InvalidRequestError,
    RequestError,
    SamplingParams,
    TokenStream,
)
from tinyllm.engine.messages import Delivery

pytestmark = pytest.mark.anyio


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switching")
async def test_no_wakeup_is_lost_between_reader_and_executor(make_engine: MakeEngine) -> None:
    # Streams of capacity 1 stall at every token, so each read races with the executor thread going to sleep.
    async with make_engine(stream_buffer_size=1, check_integrity=False) as engine:
        params = SamplingParams(max_tokens=600)
        counts: list[int] = []

        async def read() -> None:
            counts.append(len(await read_all(engine.generate("x", params))))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
        assert counts == [600, 600]


async def test_readers_that_stop_do_not_slow_those_that_read(make_engine: MakeEngine) -> None:
    runner = FakeRunner()
    async with make_engine(
        runner=runner, stream_buffer_size=4, max_num_seqs=32, num_blocks=1024, check_integrity=False
    ) as engine:
        stopped = [engine.generate(f"stops {number}", SamplingParams(max_tokens=500)) for number in range(16)]
        await wait_stalled(engine, 16)
        texts: list[str] = []

        async def read(number: int) -> None:
            texts.append(await read_all(engine.generate(f"reads {number}", SamplingParams(max_tokens=100))))

        async with anyio.create_task_group() as tasks:
            for number in range(16):
                tasks.start_soon(read, number)
        assert [len(text) for text in texts] == [100] * 16
        for stream in stopped:  # bounded means bounded: nothing was computed that nobody reads
            assert stream._receiver.statistics().current_buffer_used == 4
            assert stream._credit.sent - stream._credit.read == 4
        for stream in stopped[:2]:  # and nothing was lost
            assert len(await read_all(stream)) == 500
        for stream in stopped:
            stream.close()
        await wait_idle(engine)
        assert await num_used_blocks(engine) == 0


async def test_a_stalled_engine_sleeps(make_engine: MakeEngine) -> None:
    async with make_engine(stream_buffer_size=1) as engine:
        stream = engine.generate("x", SamplingParams(max_tokens=50))
        await wait_stalled(engine)
        started = time.process_time()
        await anyio.sleep(0.5)
        assert time.process_time() - started < 0.05
        stream.close()


class Ledger:
    """Counts each request's last words, as the event loop hears them."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.ends: Counter[str] = Counter()
        self._table = engine._table
        self._deliver, self._end = self._table.deliver, self._table.end
        self._table.deliver = self.deliver  # type: ignore[method-assign]
        self._table.end = self.end  # type: ignore[method-assign]

    def deliver(self, deliveries: list[Delivery]) -> None:
        self.ends.update(d.request_id for d in deliveries if d.finished)
        self._deliver(deliveries)

    def end(self, request: object, error: object) -> None:
        self.ends[request.request_id] += 1  # type: ignore[attr-defined]
        self._end(request, error)  # type: ignore[arg-type]


ENDINGS = (
    "read",
    "read",
    "read",
    "break",
    "close",
    "abort",
    "cancel",
    "garbage",
    "timeout",
    "stall",
    "fault",
)


async def use(
    engine: AsyncEngine, runner: FakeRunner, ending: str, dice: random.Random, outcomes: Counter[str]
) -> None:
    """Open a stream and end it in the given way; counts what its reader saw last."""
    params = SamplingParams(max_tokens=dice.choice([0, 1, 5, 40]), n=dice.choice([1, 1, 2]))
    request_id = f"{ending}-{dice.getrandbits(64):x}"
    if ending == "fault":
        runner.faults[f"{request_id}/0"] = ValueError("hook")
    prompt = "x" * dice.choice([1, 20, 40])
    stream: TokenStream | None
    if dice.random() < 0.2:
        stream = engine.chat([{"role": "user", "content": prompt}], params, request_id=request_id)
    else:
        timeout = 0.005 if ending == "timeout" else None
        stream = engine.generate(prompt, params, request_id=request_id, timeout=timeout)
    try:
        match ending:
            case "read" | "fault" | "timeout":
                await read_all(stream)
            case "break":
                async for _ in stream:
                    break
                stream.close()
            case "close":
                stream.close()
            case "abort":
                await anyio.sleep(dice.random() / 500)
                engine.abort(request_id)
                await read_all(stream)
            case "cancel":
                with anyio.move_on_after(dice.random() / 500):
                    await read_all(stream)
            case "garbage":
                stream = None
            case "stall":
                await anyio.sleep(0.1)
                await read_all(stream)
        outcomes["ended"] += 1
    except (RequestError, EngineDeadError) as error:
        outcomes[type(error).__name__] += 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("end", ["idle", "close", "crash"])
async def test_every_accepted_request_has_exactly_one_last_word(
    make_engine: MakeEngine, seed: int, end: str
) -> None:
    dice = random.Random(seed)
    runner = FakeRunner()
    outcomes: Counter[str] = Counter()
    accepted = 0
    engine = make_engine(
        runner=runner,
        num_blocks=32,
        block_size=4,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        stream_buffer_size=2,
        stall_timeout=0.05,
        max_waiting_requests=200,
    )
    async with engine:
        ledger = Ledger(engine)
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(40):
                    tasks.start_soon(use, engine, runner, dice.choice(ENDINGS), dice, outcomes)
                    accepted += 1
                await anyio.wait_all_tasks_blocked()
                if end == "crash":
                    runner.fail = BaseException("crash")
                if end == "close":
                    await engine.aclose()
        gc.collect()
        if end == "idle":
            await wait_idle(engine)
            assert await num_used_blocks(engine) == 0
        elif end == "crash" and engine.num_requests:
            await wait_idle(engine)
        assert engine.num_requests == 0
        assert sum(outcomes.values()) == accepted
        assert len(ledger.ends) == accepted
        assert set(ledger.ends.values()) == {1}
        assert engine._table.admission.answers == engine._table.admission.waiting_tokens == 0


async def test_nothing_is_accepted_that_gets_no_answer(make_engine: MakeEngine) -> None:
    # Submits race with the crash: each either raises at once, or its stream ends.
    runner = FakeRunner()
    async with make_engine(runner=runner) as engine:
        streams: list[TokenStream] = []
        refused = 0
        for number in range(200):
            if number == 100:
                runner.fail = RuntimeError("crash")
            try:
                streams.append(engine.generate("x", SamplingParams(max_tokens=3)))
            except (EngineError, InvalidRequestError):
                refused += 1
            if number % 10 == 0:
                await anyio.lowlevel.checkpoint()
        ends = Counter[str]()
        for stream in streams:
            try:
                await read_all(stream)
                ends["finished"] += 1
            except EngineDeadError:
                ends["dead"] += 1
        assert sum(ends.values()) + refused == 200
        assert ends["dead"] + refused > 0
