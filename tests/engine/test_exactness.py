"""Alone = batched = chunked = prefix-cached = preempted = contiguous, id for id, in float32.

Every example is an interleaving: requests with shared and unshared prompts, greedy and seeded, that arrive
and are aborted at chosen steps, in an engine with a chosen step budget, number of sequences, cache and cache
size. Each request's ids must be those that it gets alone in a plain engine, and those of the reference loop
if greedy.

``TINYLLM_TEST_EXAMPLES=100`` runs the full count that benches/results/exactness.md records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tinyllm.artifacts.directory import open_directory
from tinyllm.attention.backends import BACKENDS
from tinyllm.config import EngineConfig
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.engine.core import EngineCore
from tinyllm.engine.loaded import EngineInfo, LoadedModel
from tinyllm.engine.messages import Submission
from tinyllm.metrics import EngineMetrics
from tinyllm.models.causal_lm import CausalLM
from tinyllm.models.loader import load_model
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.runner.model_runner import ModelRunner
from tinyllm.runner.reference import generate_reference

MULTIPLIER = float(os.environ.get("TINYLLM_TEST_EXAMPLES", "1"))
CPU = torch.device("cpu")
MAX_LEN = 128

PARAMS = (
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(temperature=1.0, seed=7),
    SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    SamplingParams(temperature=1.2, top_k=20, min_p=0.02, seed=2**40),
    SamplingParams(temperature=0.7, typical_p=0.8, frequency_penalty=0.4, seed=-3),
    SamplingParams(temperature=1.0, seed=5, n=2),
)


@dataclass(frozen=True)
class Job:
    """One request: when it comes, when it is aborted (if it is), and what it asks."""

    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int
    aborted: int | None = None


@dataclass(frozen=True)
class Setting:
    """One way to run an engine."""

    config: EngineConfig
    num_blocks: int


@dataclass
class Bench:
    """A loaded model, and what each job gives when it is alone."""

    model: CausalLM
    alone: dict[tuple[tuple[int, ...], SamplingParams], list[tuple[int, ...]]] = field(default_factory=dict)

    def core(self, setting: Setting) -> EngineCore:
        config = setting.config
        info = EngineInfo(
            model="test",
            revision=None,
            architecture=self.model.config.architecture,
            dtype="float32",
            kv_cache_dtype="float32",
            device="cpu",
            attention_backend=self.model.backend.name,
            layers="torch",
            vocab_size=self.model.config.vocab_size,
            max_model_len=MAX_LEN,
            block_size=config.block_size,
            num_kv_blocks=setting.num_blocks,
            kv_cache_bytes=0,
            weight_bytes=0,
            load_seconds=0.0,
        )
        loaded = LoadedModel(info, None, None, EngineMetrics("test", max_model_len=MAX_LEN))
        runner = ModelRunner(
            self.model,
            self.model.backend,
            self.model.kv_cache_spec(config.block_size),
            setting.num_blocks,
            vocab_size=self.model.config.vocab_size,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        kv = KVCacheManager(
            setting.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        return EngineCore(config, loaded, kv, runner, context=torch.inference_mode)

    def ids_alone(self, job: Job) -> list[tuple[int, ...]]:
        """Return the ids of each answer of a job that has a plain engine for itself."""
        key = job.prompt, job.params
        if key not in self.alone:
            plain = Setting(EngineConfig(enable_prefix_caching=False, max_num_batched_tokens=MAX_LEN), 32)
            self.alone[key], finished = answers(self.core(plain), [Job(job.prompt, job.params, 0)])[0]
            assert finished
            if job.params == PARAMS[0].resolved(SamplingDefaults()).model_copy(
                update={"max_tokens": job.params.max_tokens}
            ):
                with torch.inference_mode():
                    reference = generate_reference(
                        self.model, job.prompt, max_tokens=job.params.max_tokens or 0
                    )
                    assert list(self.alone[key][0]) == list(reference)
        return self.alone[key]


def answers(core: EngineCore, jobs: list[Job]) -> list[tuple[list[tuple[int, ...]], bool]]:
    """Run jobs to their end: for each the ids of its answers, and whether it finished by itself."""
    ids: list[list[list[int]]] = [[[] for _ in range(job.params.n)] for job in jobs]
    ended: dict[int, bool] = {}
    step = 0
    while len(ended) < len(jobs):
        assert step < 2000, "the engine does not come to an end"
        for number, job in enumerate(jobs):
            if job.arrives == step:
                core.add(submission(str(number), job))
            if job.aborted == step:
                core.abort(str(number))
        with core.context():
            deliveries = core.step()
        core.scheduler.check_integrity()
        for delivery in deliveries:
            number = int(delivery.request_id)
            for piece in delivery.pieces:
                ids[number][piece.index] += piece.token_ids
            if delivery.finished:
                assert number not in ended, "a second ending"
                ended[number] = delivery.error is None
        step += 1
    assert core.num_requests == 0
    assert core.kv.num_free_blocks == core.kv.num_blocks
    return [([tuple(answer) for answer in ids[number]], ended[number]) for number in range(len(jobs))]


def submission(request_id: str, job: Job) -> Submission:
    max_tokens = job.params.max_tokens or 0
    return Submission(request_id, job.prompt, job.params, max_tokens, arrival_time=0.0)


@st.composite
def jobs_of(draw: st.DrawFn) -> list[Job]:
    """Draw up to six jobs; prompts often share a beginning, of any length around the block boundaries."""
    shared = [100 + i * 7 % 900 for i in range(64)]
    jobs = []
    for _ in range(draw(st.integers(1, 6))):
        head = draw(st.sampled_from((0, 1, 15, 16, 17, 31, 32, 33, 48, 64)))
        tail = draw(st.lists(st.integers(3, 2000), min_size=0 if head else 1, max_size=24))
        params = draw(st.sampled_from(PARAMS)).resolved(SamplingDefaults())
        params = params.model_copy(update={"max_tokens": draw(st.integers(1, 24)), "ignore_eos": True})
        arrives = draw(st.integers(0, 12))
        aborted = arrives + draw(st.integers(1, 20)) if draw(st.integers(0, 3)) == 0 else None
        jobs.append(Job((*shared[:head], *tail), params, arrives, aborted))
    return jobs


@st.composite
def settings_of(draw: st.DrawFn) -> Setting:
    """Draw a way to run an engine in which every single job fits."""
    contiguous = draw(st.integers(0, 4)) == 0
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=draw(st.sampled_from((1, 5, 16, 33, 64, 256))),
        max_num_partial_prefills=draw(st.integers(1, 4)),
        long_prefill_threshold=draw(st.sampled_from((0, 8, 40))),
        prefill_mode=draw(st.sampled_from(("chunked", "chunked", "one-shot"))),
        kv_cache_mode="contiguous" if contiguous else "paged",
        block_size=MAX_LEN if contiguous else draw(st.sampled_from((16, 32))),
        enable_prefix_caching=not contiguous and draw(st.booleans()),
        check_integrity=True,
    )
    enough = MAX_LEN // config.block_size
    return Setting(config, draw(st.integers(enough, 3 * enough)))


def check(bench: Bench, setting: Setting, jobs: list[Job]) -> None:
    core = bench.core(setting)
    for (ids, finished), job in zip(answers(core, jobs), jobs, strict=True):
        alone = bench.ids_alone(job)
        if finished:
            assert ids == alone
        else:
            assert job.aborted is not None
            assert all(all_of[: len(some)] == some for some, all_of in zip(ids, alone, strict=True))
    event(f"prefix hits: {core.kv.stats.hit_tokens > 0}")


@cache
def bench(path: Path, backend: str) -> Bench:
    """Load a checkpoint once for a session."""
    with torch.inference_mode():
        return Bench(
            load_model(open_directory(path), dtype=torch.float32, device=CPU, backend=BACKENDS[backend]())
        )


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread; bits do not depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_interleavings(bench: Bench, examples: int) -> None:
    @settings(
        max_examples=max(1, round(examples * MULTIPLIER)),
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(setting=settings_of(), jobs=jobs_of())
    def all_are_exact(setting: Setting, jobs: list[Job]) -> None:
        check(bench, setting, jobs)

    all_are_exact()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("backend", ["reference", "paged"])
@pytest.mark.parametrize("name", ["tiny_llama", "tiny_qwen2", "tiny_qwen3"])
def test_tiny(name: str, backend: str, request: pytest.FixtureRequest) -> None:
    loaded = bench(request.getfixturevalue(name), backend)
    # 6 cases x 4 examples, x 100 in the full run: 2,400.
    check_interleavings(loaded, 4)


@pytest.mark.weights
@pytest.mark.slow
def test_smollm2(smollm2: Path) -> None:
    loaded = bench(smollm2, "paged")
    # x 20 in the full run: 60.
    check_interleavings(loaded, 3)
