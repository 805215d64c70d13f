"""Fakes for the engine's tests and the server's: tokenizer and runner, without torch and weights.

The scheduler, the KV cache's books, the detokeniser and the threads are the real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tinyllm.config import EngineConfig
from tinyllm.core.kv_cache_manager import KVCacheManager
from tinyllm.core.request import Request
from tinyllm.core.step import ModelRunnerOutput, SampledToken, SchedulerOutput, TokenScores
from tinyllm.engine.core import EngineCore
from tinyllm.engine.loaded import EngineInfo, LoadedModel
from tinyllm.metrics import EngineMetrics
from tinyllm.params import SamplingDefaults
from tinyllm.text.tokenizer import Tokenizer

__all__ = [
    "EOS",
    "SECOND_EOS",
    "VOCAB_SIZE",
    "FakeRunner",
    "FakeTemplates",
    "Gate",
    "Script",
    "build_fake_core",
    "fake_info",
    "fake_tokenizer",
    "ids_of",
    "letters",
    "says",
]

EOS = 256
SECOND_EOS = 257
VOCAB_SIZE = 258

Script = Callable[[Request], int]
"""Chooses a request's next token."""


def _byte_alphabet() -> list[str]:
    """Return the character that stands for each byte in byte-level BPE, in order of the bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def fake_tokenizer(kind: type[Tokenizer] = Tokenizer) -> Tokenizer:
    """Return a real tokenizer whose tokens are single bytes, so that characters are split over tokens."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_alphabet())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<eos>", "<end>"])
    return kind(backend, {"eos_token": "<eos>"})


def ids_of(text: str) -> list[int]:
    """Return the fake tokenizer's ids of a text: its bytes."""
    return list(text.encode())


def letters(request: Request) -> int:
    """Choose a letter that depends on every token before it, like a model would."""
    return 97 + sum((place + 1) * token_id for place, token_id in enumerate(request.token_ids)) % 26


def says(text: str, then: int = EOS) -> Script:
    """Choose the bytes of ``text``, then ``then`` for ever."""
    ids = ids_of(text)

    def script(request: Request) -> int:
        place = request.num_output_tokens
        return ids[place] if place < len(ids) else then

    return script


class Gate:
    """Lets a test decide when the executor thread may compute a step."""

    def __init__(self) -> None:
        self._allowed = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)
        self._open = False

    def pass_through(self) -> None:
        """Wait for leave to go on; called by the runner."""
        self._entered.release()
        if not self._open:
            self._allowed.acquire()

    def allow(self, steps: int = 1) -> None:
        """Let the next steps be computed."""
        self._allowed.release(steps)

    def open(self) -> None:
        """Let all steps be computed from now on."""
        self._open = True
        self._allowed.release(1_000)

    def wait_entered(self) -> None:
        """Wait until the executor thread has come to (another) step."""
        assert self._entered.acquire(timeout=20), "no step was begun"


class FakeRunner:
    """Follows a script in place of a model, and notes what it was asked to compute."""

    def __init__(self, script: Script = letters, *, gate: Gate | None = None) -> None:
        self.script = script
        self.gate = gate
        self.steps: list[list[tuple[str, int, int]]] = []
        """For each step: request id, start and number of tokens of each row's request."""
        self.fail: BaseException | None = None
        """Raised by the next step."""
        self.faults: dict[str, BaseException] = {}
        """By the request id of the scheduler: the fault of this request alone, when it samples."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        items = scheduler_output.scheduled
        self.steps.append([(item.request.request_id, item.start, item.num_new_tokens) for item in items])
        if self.gate is not None:
            self.gate.pass_through()
        if self.fail is not None:
            raise self.fail
        output = ModelRunnerOutput(timings={"build": 1e-5, "forward": 1e-4, "sample": 1e-5})
        for item in items:
            request = item.request
            if item.samples:
                output.sampled[request.request_id] = self._sample(request)
            if request.wants_prompt_scores:
                end = min(item.start + item.num_new_tokens, request.num_prompt_tokens - 1)
                output.prompt_scores[request.request_id] = [
                    _scores(request.prompt_token_ids[place + 1], request.params.prompt_logprobs)
                    for place in range(item.start, end)
                ]
        return output

    def _sample(self, request: Request) -> SampledToken:
        fault = self.faults.get(request.request_id)
        if fault is not None:
            return SampledToken(0, error=fault)
        token_id = self.script(request)
        return SampledToken(token_id, _scores(token_id, request.params.logprobs))


def _scores(token_id: int, num_top: int | None) -> TokenScores:
    return TokenScores(token_id, -0.5, tuple((other, -1.0 - other) for other in range(num_top or 0)))


class FakeTemplates:
    """Renders messages as ``role: content`` lines."""

    def __init__(self) -> None:
        self.fault: BaseException | None = None

    def uses(self, variable: str) -> bool:
        return True

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        mark: Callable[[Any], Any] | None = None,
        /,
        *,
        tools: Any = None,
        **kwargs: Any,
    ) -> str:
        if self.fault is not None:
            raise self.fault
        mark = mark or (lambda text: text)
        lines = [f"{message['role']}: {mark(message['content'])}" for message in messages]
        lines += [f"tool: {tool['name']}" for tool in tools or ()]
        lines += [f"{name}={value}" for name, value in kwargs.items()]
        return "\n".join([*lines, "assistant:"])


def fake_info(max_model_len: int = 2048, num_blocks: int = 256, block_size: int = 16) -> EngineInfo:
    return EngineInfo(
        model="fake",
        revision=None,
        architecture="FakeForCausalLM",
        dtype="float32",
        kv_cache_dtype="float32",
        device="cpu",
        attention_backend="fake",
        layers="fake",
        vocab_size=VOCAB_SIZE,
        max_model_len=max_model_len,
        block_size=block_size,
        num_kv_blocks=num_blocks,
        kv_cache_bytes=num_blocks * block_size,
        weight_bytes=0,
        load_seconds=0.0,
    )


def build_fake_core(
    config: EngineConfig,
    *,
    runner: FakeRunner | None = None,
    script: Script = letters,
    num_blocks: int = 256,
    tokenizer: Tokenizer | None = None,
    templates: FakeTemplates | None = None,
    sampling_defaults: SamplingDefaults | None = None,
) -> EngineCore:
    """Build a core without a model: pass it (or a partial of it) as ``_build`` to an engine."""
    max_model_len = min(config.max_model_len or 2048, num_blocks * config.block_size)
    info = fake_info(max_model_len, num_blocks, config.block_size)
    model = LoadedModel(
        info=info,
        tokenizer=tokenizer or fake_tokenizer(),
        chat_templates=templates or FakeTemplates(),
        metrics=EngineMetrics("fake", max_model_len=max_model_len),
        sampling_defaults=sampling_defaults or SamplingDefaults(temperature=0.0),
        eos_token_ids=frozenset({EOS, SECOND_EOS}),
    )
    kv = KVCacheManager(num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching)
    return EngineCore(config, model, kv, runner or FakeRunner(script))
