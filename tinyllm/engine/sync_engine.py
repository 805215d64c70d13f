"""`Engine`: the same engine for scripts and notebooks that do not await."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import Any, overload

from tqdm import tqdm

from tinyllm.config import EngineConfig
from tinyllm.engine.collect import Collector
from tinyllm.engine.core import EngineCore
from tinyllm.engine.executor import CLOSE_TIMEOUT, Abort, Add, Build, Call, Executor, builder
from tinyllm.engine.loaded import EngineInfo, LoadedModel
from tinyllm.engine.messages import Delivery, RequestOptions, Submission
from tinyllm.engine.prompt import encode_prompt, make_submission, render_prompt
from tinyllm.engine.validation import check_options, check_params
from tinyllm.errors import EngineClosedError, EngineDeadError, TinyLLMError
from tinyllm.outputs import GenerationResult, TokenLogprob
from tinyllm.params import SamplingParams
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["Engine"]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Ended:
    """The executor thread's last word."""

    cause: BaseException | None


class _QueueOutbox:
    """Puts what the executor thread has to say where the caller waits for it."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[LoadedModel | list[Delivery] | _Ended] = queue.SimpleQueue()

    def started(self, model: LoadedModel) -> bool:
        self.messages.put(model)
        return True

    def deliver(self, deliveries: list[Delivery]) -> bool:
        self.messages.put(deliveries)
        return True

    def ended(self, cause: BaseException | None) -> bool:
        self.messages.put(_Ended(cause))
        return True


@dataclass(slots=True)
class _Pending:
    """One prompt of a batch, from submission to result."""

    submission: Submission
    collector: Collector = field(default_factory=Collector)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None

    def take(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            raise delivery.error
        self.prompt_logprobs = delivery.prompt_logprobs or self.prompt_logprobs
        for piece in delivery.pieces:
            self.collector.add(piece)

    def result(self) -> GenerationResult:
        request = self.submission
        return self.collector.result(
            request.request_id, request.prompt_token_ids, request.params, self.prompt_logprobs
        )


class Engine:
    """Answers prompts in batches, waiting for them; also works where an event loop runs, as in a notebook.

    ``with Engine(model=...) as engine: engine.generate(["a", "b"], SamplingParams(max_tokens=8))``. Options
    are those of `EngineConfig`. Calls from several threads wait for one another. The model is loaded at once.
    Raises `ConfigError`, `ArtifactError` or `DeviceError`.
    """

    def __init__(
        self, config: EngineConfig | None = None, *, _build: Build | None = None, **options: Any
    ) -> None:
        self.config = EngineConfig.combine(config, options)
        self._lock = Lock()
        self._outbox = _QueueOutbox()
        self._ended: _Ended | None = None
        self._executor = Executor(builder(self.config, _build), self._outbox)
        self._executor.start()
        self._model = self._wait_loaded()

    def _wait_loaded(self) -> LoadedModel:
        message = self._outbox.messages.get()
        if isinstance(message, LoadedModel):
            return message
        if isinstance(message, _Ended):
            self._ended = message
            if isinstance(message.cause, TinyLLMError):
                raise message.cause
        raise self._end_error()

    # Requests.

    @overload
    def generate(
        self,
        prompts: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompts: list[str] | tuple[str, ...] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> list[GenerationResult]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> GenerationResult | list[GenerationResult]:
        """Answer a prompt (text or token ids), or a list of them in order.

        A list may be of any length; it shows a progress bar unless ``progress`` is False. All prompts are
        checked before the first is computed. If one of them fails, the others are aborted and its error is
        raised: `InvalidRequestError`, `RequestError` or `EngineError`. ``timeout`` bounds the whole call.
        """
        single = _is_one(prompts, int)
        batch: Sequence[Any] = [prompts] if single else prompts
        encoded = [self._encode(prompt) for prompt in batch]
        results = self._run(encoded, params, timeout, cache_salt, progress and not single)
        return results[0] if single else results

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        special_tokens_in_messages: bool = True,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> GenerationResult: ...

    @overload
    def chat(
        self,
        messages: Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        special_tokens_in_messages: bool = True,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> list[GenerationResult]: ...

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        special_tokens_in_messages: bool = True,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = True,
    ) -> GenerationResult | list[GenerationResult]:
        """Answer a conversation, or a list of them; see `generate` and `AsyncEngine.chat`."""
        single = _is_one(messages, Mapping)
        batch: Sequence[Any] = [messages] if single else messages
        model = self._check_open()
        prompts = [
            render_prompt(model, one, tools, chat_template_kwargs, special_tokens_in_messages).token_ids
            for one in batch
        ]
        results = self._run(prompts, params, timeout, cache_salt, progress and not single)
        return results[0] if single else results

    def _encode(self, prompt: Prompt) -> Sequence[int]:
        return encode_prompt(self._check_open(), prompt) if isinstance(prompt, str) else prompt

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None,
        timeout: float | None,
        cache_salt: str,
        progress: bool,
    ) -> list[GenerationResult]:
        model = self._check_open()
        arrival = time.monotonic()
        submissions = []
        for prompt in prompts:
            own = check_params(params, model)  # for each, so that each draws a seed if none is given
            options = RequestOptions(uuid.uuid4().hex, own, arrival, timeout=timeout, cache_salt=cache_salt)
            check_options(self.config, options)
            submissions.append(make_submission(model, prompt, options))
        with (
            self._lock,
            tqdm(
                total=len(submissions), desc="Prompts", disable=None if progress and submissions else True
            ) as bar,
        ):
            self._check_open()
            return self._compute(submissions, bar)

    def _compute(self, submissions: list[Submission], bar: tqdm[Any]) -> list[GenerationResult]:
        """Keep as many answers in the engine as it takes, until all prompts are done."""
        room = self.config.max_num_seqs + self.config.max_waiting_requests
        waiting = iter(submissions)
        following = next(waiting, None)
        pending: dict[str, _Pending] = {}
        results: dict[str, GenerationResult] = {}
        try:
            while following is not None or pending:
                while following is not None and following.params.n <= room:
                    room -= following.params.n
                    pending[following.request_id] = _Pending(following)
                    self._executor.mailbox.put(Add(following))
                    following = next(waiting, None)
                for delivery in self._next_deliveries():
                    request = pending.get(delivery.request_id)
                    if request is None:
                        continue  # the rest of a batch that was given up
                    request.take(delivery)
                    if delivery.finished:
                        del pending[delivery.request_id]
                        room += request.submission.params.n
                        results[delivery.request_id] = request.result()
                        bar.update()
        finally:  # nothing is pending, unless one failed or the caller was interrupted
            for request_id in pending:
                self._executor.mailbox.put(Abort(request_id))
        return [results[submission.request_id] for submission in submissions]

    def _next_deliveries(self) -> list[Delivery]:
        message = self._outbox.messages.get()
        if isinstance(message, _Ended):
            self._ended = message
            raise self._end_error()
        return message if isinstance(message, list) else []

    # Life, and what is known.

    def close(self) -> None:
        """Free the model. May be called again; a call waiting in another thread ends with an error."""
        self._executor.stop()
        self._executor.join(CLOSE_TIMEOUT)
        if self._ended is None:
            self._ended = _Ended(None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # May run on any thread; absent if the config was wrong.
        executor = getattr(self, "_executor", None)
        if executor is not None:
            executor.stop()

    @property
    def info(self) -> EngineInfo:
        """What really runs, every ``auto`` resolved."""
        return self._model.info

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer; None if the model has none."""
        return self._model.tokenizer

    def metrics_text(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return self._model.metrics.text()

    def reset_prefix_cache(self) -> None:
        """Have the engine forget cached prefixes, before any request that comes after this call."""
        self._check_open()
        self._executor.mailbox.put(Call(EngineCore.reset_prefix_cache))

    def _check_open(self) -> LoadedModel:
        if self._ended is not None or not self._executor.is_alive:
            raise self._end_error()
        return self._model

    def _end_error(self) -> TinyLLMError:
        cause = None if self._ended is None else self._ended.cause
        if cause is None:
            return EngineClosedError("the engine is closed: make a new one")
        error = EngineDeadError(f"the engine died of {type(cause).__name__}; make a new one")
        error.__cause__ = cause
        return error


def _is_one(given: object, part: type) -> bool:
    """Whether this is one prompt or conversation, whose parts are of type ``part``, and no list of them.

    So is what is neither: it is refused as one.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        return True
    return len(given) > 0 and isinstance(given[0], part)
