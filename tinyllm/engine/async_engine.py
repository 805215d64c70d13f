"""`AsyncEngine`: the engine on an event loop. Prompts in, bounded token streams out."""

from __future__ import annotations

import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import anyio
from prometheus_client import CollectorRegistry

from tinyllm.config import EngineConfig
from tinyllm.core.request import StreamCredit
from tinyllm.engine.bridge import Bridge
from tinyllm.engine.core import EngineCore
from tinyllm.engine.executor import CLOSE_TIMEOUT, Abort, Add, Build, Call, Executor, build_from_files
from tinyllm.engine.loaded import EngineInfo, LoadedModel
from tinyllm.engine.messages import Delivery, RequestOptions, Submission
from tinyllm.engine.prompt import (
    RenderedPrompt,
    encode_prompt,
    make_submission,
    render_prompt,
)
from tinyllm.engine.stream import TokenStream
from tinyllm.engine.stream_table import AcceptedRequest, StreamTable
from tinyllm.engine.validation import check_options, check_params
from tinyllm.engine.worker import Outcome, TextWorker
from tinyllm.errors import (
    EngineClosedError,
    EngineDeadError,
    RequestAbortedError,
    TinyLLMError,
)
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["AsyncEngine", "EngineStatus"]

T = TypeVar("T")

INLINE_CHARACTERS = 4096
"""A prompt of more characters is encoded on a helper thread, so that it does not hold up the event loop."""


class EngineStatus(StrEnum):
    """Where an engine is in its life."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    CLOSED = "closed"
    DEAD = "dead"
    """A step failed, or the model could not be loaded; `AsyncEngine.cause` says why."""


class AsyncEngine:
    """Serves many requests at once on one model, from asyncio or trio.

    ``AsyncEngine(model=..., dtype=...)`` or ``AsyncEngine(EngineConfig(...))``; options given beside a config
    replace its own. Use it as ``async with AsyncEngine() as engine``, or call `start` and `aclose`, also from
    different tasks. It belongs to the event loop that started it. Raises `ConfigError` on a wrong option.
    """

    def __init__(
        self, config: EngineConfig | None = None, *, _build: Build | None = None, **options: Any
    ) -> None:
        self._status = EngineStatus.NEW
        self.config = EngineConfig.combine(config, options)
        self.cause: BaseException | None = None
        """Why the engine is dead, if it is."""
        self._model: LoadedModel | None = None
        self._table = StreamTable(self.config)
        self._worker = TextWorker()
        self._outbox = _LoopOutbox(self)
        self._executor = Executor(partial(_build or build_from_files, self.config), self._outbox)
        # Made by `start`, on the event loop they belong to.
        self._bridge: Bridge
        self._loaded: anyio.Event
        self._ended: anyio.Event

    # Life.

    async def start(self) -> None:
        """Load the model; returns when requests are taken.

        Raises what is wrong with the model (`ArtifactError`, `DeviceError`, `ConfigError`), and
        `EngineClosedError` if the engine was started before: it cannot be used twice.
        """
        if self._status is not EngineStatus.NEW:
            raise EngineClosedError(f"this engine is {self._status} already; make a new one")
        self._status = EngineStatus.STARTING
        self._bridge = self._outbox.bridge = Bridge()
        self._loaded, self._ended = anyio.Event(), anyio.Event()
        self._executor.start()
        try:
            await self._loaded.wait()
        except BaseException:  # cancelled: loading cannot be interrupted, but it ends with nothing
            self._shut()
            raise
        if self.cause is not None:
            raise self.cause if isinstance(self.cause, TinyLLMError) else self._dead_error()
        self._check_running()

    async def drain(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Refuse new requests, and wait until those accepted have ended.

        After ``timeout`` seconds (default: ``shutdown_timeout``) the rest is aborted. Returns whether all
        ended by themselves.
        """
        if self._status is EngineStatus.RUNNING:
            self._status = EngineStatus.DRAINING
        with anyio.move_on_after(self.config.shutdown_timeout if timeout is None else timeout):
            await self._table.wait_empty()
        left = self._table.ids()
        for request_id in left:
            self.abort(request_id)
        with anyio.move_on_after(CLOSE_TIMEOUT):
            await self._table.wait_empty()
        return not left

    async def aclose(self) -> None:
        """End every request with `RequestAbortedError`, and free the model. May be called again.

        To let requests finish first, `drain`. Waits for the step in progress, also when cancelled.
        """
        was_started = self._status is not EngineStatus.NEW
        self._shut()
        if not was_started:
            return
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            if self._bridge.is_here():
                await self._ended.wait()
            else:  # its event loop is another one, perhaps gone
                await anyio.to_thread.run_sync(self._executor.join, CLOSE_TIMEOUT)
        self._executor.join(timeout=1.0)  # it has said its last word

    async def __aenter__(self) -> AsyncEngine:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # May run on any thread: both calls only leave a word for the threads.
        if self._status in (EngineStatus.STARTING, EngineStatus.RUNNING, EngineStatus.DRAINING):
            self._shut()
            warnings.warn("an AsyncEngine was not closed; use 'async with'", ResourceWarning, stacklevel=1)

    def _shut(self) -> None:
        self._executor.stop()
        self._worker.stop()
        if self._status is not EngineStatus.DEAD:
            self._status = EngineStatus.CLOSED

    # Requests.

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        cache_salt: str = "",
    ) -> TokenStream:
        """Accept a prompt, text or token ids, and return the stream of its answers.

        Not a coroutine: what is wrong is raised at once, before anything is accepted. ``priority`` is smaller
        for sooner; ``timeout`` bounds the whole request and ``queue_timeout`` its time in the queue, in
        seconds; requests share cached prefixes only with those of the same ``cache_salt``.

        Raises `InvalidRequestError`, `ContextLengthError`, `EngineOverloadedError` (try again later),
        `EngineClosedError` and `EngineDeadError`. A long text is encoded in the background; what is found
        wrong then is raised by the stream.
        """
        model = self._check_running()
        options = self._options(params, request_id, priority, timeout, queue_timeout, cache_salt)
        if not isinstance(prompt, str):
            return self._open(options, make_submission(model, prompt, options))
        if len(prompt) <= INLINE_CHARACTERS:
            return self._open(options, make_submission(model, encode_prompt(model, prompt), options))
        return self._open_later(options, partial(encode_prompt, model, prompt))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        cache_salt: str = "",
    ) -> TokenStream:
        """Accept a conversation (``{"role": ..., "content": ...}`` each), and return the stream of answers.

        The model's chat template is applied in the background, so what is wrong with the messages
        (`ChatTemplateError`, `ContextLengthError`) is raised by the stream. The rest is as for `generate`.
        """
        model = self._check_running()
        options = self._options(params, request_id, priority, timeout, queue_timeout, cache_salt)
        render = partial(render_prompt, model, messages, tools, chat_template_kwargs)
        return self._open_later(options, lambda: render().token_ids)

    def abort(self, request_id: str) -> bool:
        """End a request, whatever it is doing; its stream raises `RequestAbortedError`.

        Returns whether there is such a request. Called again, it changes nothing.
        """
        request = self._table.get(request_id)
        if request is None:
            return False
        if not request.is_submitted:
            self._table.end(request, RequestAbortedError("the request was aborted"))
            self._loaded_model().metrics.record_cancelled("queued")
        elif not request.is_aborting:
            request.is_aborting = True
            self._executor.mailbox.put(Abort(request_id))
        return True

    def _options(
        self,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        timeout: float | None,
        queue_timeout: float | None,
        cache_salt: str,
    ) -> RequestOptions:
        """Check all of a request but its prompt."""
        options = RequestOptions(
            request_id=uuid.uuid4().hex if request_id is None else request_id,
            params=check_params(params, self._loaded_model()),
            arrival_time=time.monotonic(),
            priority=priority,
            timeout=timeout,
            queue_timeout=queue_timeout,
            cache_salt=cache_salt,
            credit=StreamCredit(self.config.stream_buffer_size),
        )
        check_options(self.config, options)
        return options

    def _open(self, options: RequestOptions, submission: Submission) -> TokenStream:
        request, stream = self._accept(options, len(submission.prompt_token_ids))
        self._submit(request, stream, submission)
        return stream

    def _open_later(self, options: RequestOptions, encode: Callable[[], Sequence[int]]) -> TokenStream:
        """Take a place for a request at once, and submit it when its prompt is encoded."""
        request, stream = self._accept(options, None)
        model = self._loaded_model()
        self._worker.submit(
            lambda: make_submission(model, encode(), options),
            lambda outcome: self._bridge.post(self._take_encoded, request, outcome),
        )
        return stream

    def _accept(self, options: RequestOptions, tokens: int | None) -> tuple[AcceptedRequest, TokenStream]:
        make_stream = partial(TokenStream, self, options.request_id, options.params, options.credit)
        return self._table.open(options.request_id, options.params.n, tokens, make_stream)

    def _take_encoded(self, request: AcceptedRequest, outcome: Outcome[Submission]) -> None:
        if self._table.get(request.request_id) is not request:
            return  # aborted meanwhile
        stream = request.stream()
        if stream is None or stream.has_ended:
            self._loaded_model().metrics.record_cancelled("queued")
            self._table.end(request, RequestAbortedError("the stream was closed"))
            return
        try:
            submission = outcome.get()
            self._table.admission.add_tokens(request.ticket, len(submission.prompt_token_ids))
        except TinyLLMError as error:
            self._table.end(request, error)
            return
        self._submit(request, stream, submission)

    def _submit(self, request: AcceptedRequest, stream: TokenStream, submission: Submission) -> None:
        stream.prompt_token_ids = submission.prompt_token_ids
        request.is_submitted = True
        self._executor.mailbox.put(Add(submission))

    def abandon(self, request_id: str) -> None:
        """Abort a request whose reader has gone. For streams; never blocks, safe in ``__del__``."""
        self._executor.mailbox.put(Abort(request_id))

    def wake(self) -> None:
        """Tell the executor thread that a stream has room again. For streams."""
        self._executor.mailbox.wake()

    # Text.

    async def encode(self, text: str) -> list[int]:
        """Return the token ids of a prompt, without holding up the event loop."""
        model = self._check_running()
        if isinstance(text, str) and len(text) <= INLINE_CHARACTERS:
            return encode_prompt(model, text)
        return await self._on_worker(partial(encode_prompt, model, text))

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return the text and token ids that `chat` would give to the model."""
        model = self._check_running()
        return await self._on_worker(partial(render_prompt, model, messages, tools, chat_template_kwargs))

    async def _on_worker(self, function: Callable[[], T]) -> T:
        done = anyio.Event()
        outcomes: list[Outcome[T]] = []

        def finish(outcome: Outcome[T]) -> None:
            outcomes.append(outcome)
            self._bridge.post(done.set)

        self._worker.submit(function, finish)
        await done.wait()
        return outcomes[0].get()

    # What it is doing.

    @property
    def status(self) -> EngineStatus:
        """Where the engine is in its life."""
        return self._status

    @property
    def info(self) -> EngineInfo:
        """What really runs, every ``auto`` resolved. Raises `EngineClosedError` before it is loaded."""
        return self._loaded_model().info

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, safe on any thread; None if the model has none."""
        return self._loaded_model().tokenizer

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """What the model's own ``generation_config.json`` says about sampling."""
        return self._loaded_model().sampling_defaults

    @property
    def num_requests(self) -> int:
        """Requests accepted and not ended; ``n`` answers count once."""
        return len(self._table)

    @property
    def busy_seconds(self) -> float:
        """How long the present step has been going on; 0 between steps and when idle.

        Much more than steps usually take means that the executor thread hangs.
        """
        return self._executor.busy_seconds

    @property
    def registry(self) -> CollectorRegistry:
        """The engine's own Prometheus registry."""
        return self._loaded_model().metrics.registry

    def metrics_text(self) -> str:
        """Return all metrics in Prometheus' text format; nothing before the model is loaded."""
        return "" if self._model is None else self._model.metrics.text()

    def reset_prefix_cache(self) -> None:
        """Have the engine forget cached prefixes, before any request that comes after this call."""
        self._check_running()
        self._executor.mailbox.put(Call(EngineCore.reset_prefix_cache))

    def _loaded_model(self) -> LoadedModel:
        if self._model is None:
            raise EngineClosedError("the engine is not started: use 'async with', or await start() first")
        return self._model

    def _check_running(self) -> LoadedModel:
        """Return the model, or raise why no request can be taken."""
        match self._status:
            case EngineStatus.RUNNING:
                if not self._bridge.is_here():
                    raise EngineClosedError(
                        "this engine belongs to another event loop: start one in this loop"
                    )
                return self._loaded_model()
            case EngineStatus.DEAD:
                raise self._dead_error()
            case EngineStatus.NEW | EngineStatus.STARTING:
                raise EngineClosedError("the engine is not started: use 'async with', or await start() first")
            case _:
                raise EngineClosedError(f"the engine is {self._status} and takes no new requests")

    def _dead_error(self) -> EngineDeadError:
        error = EngineDeadError(
            f"the engine died of {type(self.cause).__name__}; it does not come back: start a new one"
        )
        error.__cause__ = self.cause
        return error

    # Posted by the executor thread.

    def _take_started(self, model: LoadedModel) -> None:
        self._model = model
        if self._status is EngineStatus.STARTING:
            self._status = EngineStatus.RUNNING
        self._loaded.set()

    def _take_deliveries(self, deliveries: list[Delivery], posted: float) -> None:
        self._loaded_model().metrics.record_loop_lag(time.monotonic() - posted)
        self._table.deliver(deliveries)

    def _take_ended(self, cause: BaseException | None) -> None:
        if cause is not None:
            self.cause = cause
            self._status = EngineStatus.DEAD
            self._table.end_all(self._dead_error)
        else:
            self._status = EngineStatus.CLOSED
            self._table.end_all(lambda: RequestAbortedError("the engine was closed"))
        self._loaded.set()
        self._ended.set()


class _LoopOutbox:
    """Posts what the executor thread has to say to an engine, without keeping the engine alive."""

    bridge: Bridge
    """Set before the thread starts."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = weakref.ref(engine)

    def started(self, model: LoadedModel) -> bool:
        return self.bridge.post(self._tell, AsyncEngine._take_started, model)

    def deliver(self, deliveries: list[Delivery]) -> bool:
        return self.bridge.post(self._tell, AsyncEngine._take_deliveries, deliveries, time.monotonic())

    def ended(self, cause: BaseException | None) -> bool:
        return self.bridge.post(self._tell, AsyncEngine._take_ended, cause)

    def _tell(self, method: Callable[..., None], *args: object) -> None:
        engine = self._engine()
        if engine is not None:
            method(engine, *args)
