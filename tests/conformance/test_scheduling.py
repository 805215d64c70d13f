"""Section D6 of shared/design/conformance.md: cancelling, the scheduler and the KV cache."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.support import PROMPT, SMALL, fake_engine, ids_in, read
from tests.engine.support import metric, num_used_blocks, on_thread, wait_idle, wait_stalled
from tests.fakes import FakeRunner, Gate
from tinyllm import (
    AsyncEngine,
    ContextLengthError,
    Engine,
    EngineDeadError,
    EngineStatus,
    RequestAbortedError,
    SamplingParams,
)
from tinyllm.config import EngineConfig
from tinyllm.core.step import ModelRunnerOutput, SchedulerOutput
from tinyllm.engine.build import build_core
from tinyllm.engine.core import EngineCore
from tinyllm.engine.messages import Submission
from tinyllm.params import SamplingDefaults

pytestmark = pytest.mark.anyio

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
BLOCK = 16


@pytest.fixture(scope="module")
async def engine(tiny_llama: Path) -> AsyncIterator[AsyncEngine]:
    """A random Llama that computes prompts in chunks of a block."""
    options = {**SMALL, "max_num_batched_tokens": BLOCK, "max_num_seqs": 2, "stream_buffer_size": 4}
    async with AsyncEngine(model=str(tiny_llama), **options) as engine:
        yield engine


def with_blocks(path: Path, num_blocks: int, **options: Any) -> EngineConfig:
    """Return the config of an engine with exactly so many KV blocks."""
    values = json.loads((path / "config.json").read_text())
    per_token = values["num_hidden_layers"] * values["num_key_value_heads"] * values["head_dim"] * 2 * 4
    size = {"kv_cache_bytes": num_blocks * BLOCK * per_token, "max_model_len": None}
    return EngineConfig(model=str(path), **{**SMALL, **size, **options})


async def test_d51_dropping_in_every_phase(engine: AsyncEngine) -> None:
    """Dropped while queued, in its prompt, decoding and stalled: all blocks free, nothing runs, counted."""
    cancelled = metric(engine, "requests_cancelled_total")
    for phase in ("queued", "prefill", "decode", "stalled"):
        others = [engine.generate(PROMPT, LONG) for _ in range(2 if phase == "queued" else 0)]
        stream = engine.generate([9] * 90, LONG)
        if phase in ("decode", "stalled"):
            await anext(stream)
        if phase == "stalled":
            await wait_stalled(engine)
        for each in (stream, *others):
            each.close()
        await wait_idle(engine)
        assert await num_used_blocks(engine) == 0
        assert await on_thread(engine, lambda core: (core.scheduler.num_running, core.num_requests)) == (0, 0)
    assert metric(engine, "requests_cancelled_total") == cancelled + 6
    assert metric(engine, "num_requests_running") == metric(engine, "num_requests_waiting") == 0


@pytest.mark.parametrize("by", ["break", "task", "garbage", "abort", "timeout"])
async def test_d51_however_it_is_dropped(engine: AsyncEngine, by: str) -> None:
    """break, a cancelled task, garbage, abort(id), a timeout around the read: all the same."""
    cancelled = metric(engine, "requests_cancelled_total")
    stream = engine.generate([9] * 40, LONG)
    if by == "break":
        async for _ in stream:
            break
        del stream
    elif by == "task":
        task = asyncio.create_task(stream.result())
        await anyio.lowlevel.checkpoint()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif by == "garbage":
        await anext(stream)
        del stream
    elif by == "abort":
        assert engine.abort(stream.request_id)
        with pytest.raises(RequestAbortedError):
            await stream
    else:
        with anyio.move_on_after(0.005):
            await stream
    gc.collect()
    await wait_idle(engine)
    assert await num_used_blocks(engine) == 0
    assert metric(engine, "requests_cancelled_total") == cancelled + 1


async def test_d52_cancelled_in_the_second_chunk() -> None:
    """Cancelled in chunk 2 of 20: at most one more chunk is computed."""
    gate = Gate()
    runner = FakeRunner(gate=gate)
    async with fake_engine(runner=runner, max_num_batched_tokens=16) as engine:
        stream = engine.generate("x" * 320, SamplingParams(max_tokens=5))
        gate.allow()
        await anyio.to_thread.run_sync(gate.wait_entered)
        await anyio.to_thread.run_sync(gate.wait_entered)  # in the second chunk
        stream.close()
        gate.open()
        await wait_idle(engine)
        assert len(runner.steps) <= 3
        assert await num_used_blocks(engine) == 0


async def test_d54_cancelled_before_there_are_blocks() -> None:
    """Cancelled before a step, and twice: no exception, one terminal item, and the engine goes on."""
    gate = Gate()
    async with fake_engine(runner=FakeRunner(gate=gate), max_num_seqs=1) as engine:
        first = engine.generate("x", SamplingParams(max_tokens=2))
        await anyio.to_thread.run_sync(gate.wait_entered)
        stream = engine.generate("y", SamplingParams(max_tokens=2))
        assert engine.abort(stream.request_id)
        engine.abort(stream.request_id)
        stream.close()
        gate.open()
        assert len((await first).token_ids) == 2
        await wait_idle(engine)
        assert metric(engine, "requests_cancelled_total") == 1
        assert len((await engine.generate("z", SamplingParams(max_tokens=2))).token_ids) == 2


async def test_d54_cancelled_during_the_last_step() -> None:
    """Aborted while its last token is computed: exactly one ending, an abort or the answer, not both."""
    gate = Gate()
    async with fake_engine(runner=FakeRunner(gate=gate)) as engine:
        stream = engine.generate("x", SamplingParams(max_tokens=1))
        await anyio.to_thread.run_sync(gate.wait_entered)
        engine.abort(stream.request_id)
        gate.open()
        with pytest.raises(RequestAbortedError):
            await stream
        with pytest.raises(RequestAbortedError):
            await anext(stream)
        await wait_idle(engine)
        assert not engine.abort(stream.request_id)


async def test_d56_one_slow_reader_of_eight(tiny_llama: Path) -> None:
    """8 interleaved streams, one read slowly: each ends after its last piece; the others do not wait."""
    async with AsyncEngine(model=str(tiny_llama), **{**SMALL, "stream_buffer_size": 2}) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        alone = [(await engine.generate([9, number], params)).token_ids for number in range(8)]
        slow, *fast = [engine.generate([9, number], params) for number in range(8)]
        answers: list[list[int]] = [[] for _ in fast]

        async def take(number: int) -> None:
            answers[number] = ids_in(await read(fast[number]))

        async with anyio.create_task_group() as tasks:
            for number in range(7):
                tasks.start_soon(take, number)
        assert not slow.has_ended  # the others have
        assert [tuple(ids) for ids in answers] == alone[1:]
        ids: list[int] = []
        with anyio.fail_after(20):
            async for piece in slow:
                ids += piece.token_ids
                await anyio.sleep(0.001)
        assert tuple(ids) == alone[0]
        with pytest.raises(StopAsyncIteration):
            await anext(slow)


@pytest.mark.parametrize("kind", ["generate", "chat", "encode"])
async def test_d57_a_huge_prompt_does_not_hold_up_the_loop(engine: AsyncEngine, kind: str) -> None:
    """A huge prompt beside a long generation: the event loop goes on all the time (it is also HTTP's)."""
    text = "lorem ipsum dolor " * 40_000
    running = asyncio.create_task(read(engine.generate(PROMPT, LONG)))
    gaps: list[float] = []
    done = asyncio.Event()

    async def poll() -> None:
        while not done.is_set():
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            gaps.append(time.perf_counter() - before)

    polling = asyncio.create_task(poll())
    if kind == "encode":
        assert len(await engine.encode(text)) > 100_000
    else:
        stream = (
            engine.generate(text, GREEDY)
            if kind == "generate"
            else engine.chat([{"role": "user", "content": text}], GREEDY)
        )
        with pytest.raises(ContextLengthError):
            await stream
    done.set()
    await polling
    await running
    # If encoding kept the interpreter's lock, nearly all of this time would be one gap.
    assert len(gaps) >= 8
    assert max(gaps) < sum(gaps) / 2


class Failing:
    """A runner that raises in one step."""

    def __init__(self, runner: Any, at: int) -> None:
        self._runner = runner
        self._left = at

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("boom")
        output: ModelRunnerOutput = self._runner.execute_model(scheduler_output)
        return output


async def test_d58_a_step_that_raises(tiny_llama: Path) -> None:
    """A fault of a step: every stream ends with an error that has the cause, and nothing hangs after it."""

    def sabotage(core: EngineCore) -> None:
        core._runner = Failing(core._runner, at=3)

    async with AsyncEngine(model=str(tiny_llama), **{**SMALL, "max_num_seqs": 2}) as engine:
        await on_thread(engine, sabotage)
        await check_dead(engine)


async def check_dead(engine: AsyncEngine) -> None:
    streams = [engine.generate([9, number], LONG) for number in range(4)]  # two of them wait
    for stream in streams:
        with pytest.raises(EngineDeadError) as caught:
            await read(stream)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert "boom" not in str(caught.value)
    assert engine.status is EngineStatus.DEAD
    with pytest.raises(EngineDeadError):
        engine.generate("x", GREEDY)
    with pytest.raises(EngineDeadError):
        engine.chat([], GREEDY)
    with pytest.raises(EngineDeadError):
        await engine.encode("x")


async def test_d59_what_never_fits_is_refused(tiny_llama: Path) -> None:
    """A cache of 4 blocks: a prompt of 6 is refused with the numbers, one of 4 and more runs."""
    async with AsyncEngine(with_blocks(tiny_llama, 4)) as engine:
        assert engine.info.num_kv_blocks == 4
        for prompt, max_tokens in ((6 * BLOCK, 1), (4 * BLOCK, 1), (3 * BLOCK, BLOCK + 1), (1, None)):
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            if max_tokens is None:
                assert len((await engine.generate([9], params)).token_ids) == 4 * BLOCK - 1
                continue
            with pytest.raises(ContextLengthError, match=f"{4 * BLOCK} tokens"):
                engine.generate([9] * prompt, params)
        exact = SamplingParams(temperature=0.0, max_tokens=BLOCK, ignore_eos=True)
        assert len((await engine.generate([9] * 3 * BLOCK, exact)).token_ids) == BLOCK
        assert await num_used_blocks(engine) == 0


def submission(request_id: str, prompt: list[int], max_tokens: int, **options: Any) -> Submission:
    params = SamplingParams(
        **{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **options}
    ).resolved(SamplingDefaults())
    return Submission(request_id, tuple(prompt), params, max_tokens, arrival_time=time.monotonic())


def run_core(core: EngineCore, until: int | None = None) -> Counter[str]:
    """Step until all has ended, or so often; count the tokens of each request."""
    tokens: Counter[str] = Counter()
    steps = 0
    while core.num_requests and steps != until:
        steps += 1
        assert steps < 5000
        with core.context():
            for delivery in core.step():
                assert delivery.error is None
                tokens[delivery.request_id] += sum(len(piece.token_ids) for piece in delivery.pieces)
    return tokens


async def test_d60_a_long_prompt_holds_nobody_up(tiny_llama: Path) -> None:
    """A long prompt is computed while others decode and a short one comes: a token a step; 3 steps."""
    core = build_core(EngineConfig(model=str(tiny_llama), **{**SMALL, "max_num_batched_tokens": 8}))
    for name in ("one", "two"):
        core.add(submission(name, [9, 9], 100))
    run_core(core, until=1)
    core.add(submission("long", [9] * 150, 2))
    run_core(core, until=2)
    core.add(submission("short", [7, 8], 1))
    tokens: Counter[str] = Counter()
    for _ in range(3):
        new = run_core(core, until=1)
        assert new["one"] == new["two"] == 1
        tokens += new
        if tokens["short"]:
            break
    assert tokens["short"] == 1
    assert tokens["long"] == 0
    assert run_core(core)["long"] == 2


@pytest.mark.parametrize("blocks", [1, 2, 3])
async def test_d61_a_prompt_that_is_cached_whole(llama: Engine, blocks: int) -> None:
    """A prompt of whole blocks, all cached: its last token is computed anew, and the answer is the same."""
    prompt = [10 + blocks, *range(20, 20 + blocks * BLOCK - 1)]
    first, second = llama.generate(prompt, GREEDY), llama.generate(prompt, GREEDY)
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens in (blocks * BLOCK - 1, (blocks - 1) * BLOCK)
    assert second.token_ids == first.token_ids
    longer = llama.generate([*prompt, *first.token_ids], GREEDY)  # now with a partial block behind it
    assert longer.usage.cached_tokens == blocks * BLOCK
    llama.reset_prefix_cache()
    assert llama.generate([*prompt, *first.token_ids], GREEDY).token_ids == longer.token_ids


async def test_d62_preempted_and_admitted_anew(tiny_llama: Path, llama: Engine) -> None:
    """A small cache, 64 requests with a shared prefix: preempted, and every answer as without pressure."""
    shared = list(range(30, 30 + 2 * BLOCK))
    prompts = [[*shared, 100 + number] for number in range(64)]
    greedy = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    seeded = greedy.model_copy(update={"temperature": 1.0, "seed": 7})
    with Engine(with_blocks(tiny_llama, 12)) as small:
        for params in (greedy, seeded):
            expected = llama.generate(prompts[:12], params, progress=False)
            results = small.generate(prompts if params is greedy else prompts[:12], params, progress=False)
            for result, wanted in zip(results, expected, strict=False):
                assert result.token_ids == wanted.token_ids
            assert len({result.token_ids for result in results}) > 1
            assert any(result.metrics.num_preemptions for result in results)
            assert all(len(result.token_ids) == 48 for result in results)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_d64_eviction_under_pressure(small_core: EngineCore, llama: Engine, seed: int) -> None:
    """Shared blocks under eviction, with aborts: the books hold after each step, no freed block is read."""
    draw = random.Random(seed)
    core = small_core
    heads = [[40 + head] * (BLOCK * (1 + head % 3)) for head in range(3)]
    wanted: dict[str, tuple[int, ...]] = {}
    got: dict[str, list[int]] = {}
    aborted = set()
    for number in range(8):
        prompt = [*draw.choice(heads), *[draw.randrange(100, 104) for _ in range(draw.randrange(3))]]
        length = draw.randrange(1, 6)
        name = f"{seed}-{number}"
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        wanted[name] = answer(llama, tuple(prompt), params)
        got[name] = []
        core.add(submission(name, prompt, length))
        if draw.randrange(4) == 0:
            aborted.add(name)
            core.abort(name)
        for _ in range(draw.randrange(3)):
            step_into(core, got)
    while core.num_requests:
        step_into(core, got)
    for name, ids in got.items():
        if name not in aborted:
            assert tuple(ids) == wanted[name]
    assert core.kv.num_free_blocks == core.kv.num_blocks


def step_into(core: EngineCore, got: dict[str, list[int]]) -> None:
    with core.context():
        for delivery in core.step():
            got[delivery.request_id] += ids_in(delivery.pieces)
    core.scheduler.check_integrity()


ANSWERS: dict[tuple[tuple[int, ...], int | None], tuple[int, ...]] = {}


def answer(engine: Engine, prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """Return what a prompt gives in an engine without pressure."""
    key = prompt, params.max_tokens
    if key not in ANSWERS:
        ANSWERS[key] = engine.generate(prompt, params, cache_salt="plain").token_ids
    return ANSWERS[key]


@pytest.fixture(scope="module")
def small_core(tiny_llama: Path) -> EngineCore:
    return build_core(with_blocks(tiny_llama, 5, max_num_batched_tokens=20))


async def test_d65_idle_costs_nothing(engine: AsyncEngine) -> None:
    """Idle after work: less than 1% of a processor (50 ms in 5 s; a tenth of it here)."""
    await engine.generate(PROMPT, GREEDY)
    await wait_idle(engine)
    gc.collect()
    before = time.process_time()
    await anyio.sleep(0.5)
    assert time.process_time() - before < 0.005
