"""`AsyncEngine`: the engine on an event loop. Prompts in, bounded token streams out."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio
from prometheus_client import CollectorRegistry

from tinyllm.core.request import StreamCredit
from tinyllm.engine.core import EngineCore
from tinyllm.engine.executor import Abort, Add, Call
from tinyllm.engine.lifecycle import EngineLifecycle, EngineStatus
from tinyllm.engine.loaded import EngineInfo
from tinyllm.engine.messages import RequestOptions, Submission
from tinyllm.engine.prompt import (
    RenderedPrompt,
    decode_ids,
    encode_prompt,
    make_submission,
    prompt_ids,
    render_prompt,
)
from tinyllm.engine.stream import TokenStream
from tinyllm.engine.stream_table import AcceptedRequest
from tinyllm.engine.validation import check_options, check_params
from tinyllm.engine.worker import Outcome, is_long
from tinyllm.errors import (
    EngineOverloadedError,
    RequestAbortedError,
    RequestTimeoutError,
    TinyLLMError,
)
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["AsyncEngine", "EngineStatus"]

T = TypeVar("T")

INLINE_CHARACTERS = 4096
"""More characters are encoded on a helper thread, so that they do not hold up the event loop."""
INLINE_TOKENS = 1024
"""More token ids than this are decoded there as well."""
MAX_WAITING_TEXTS = 32
"""Calls that only ask about text may wait for the helper thread; more are refused."""


class AsyncEngine(EngineLifecycle):
    """Serves many requests at once on one model, from asyncio or trio.

    ``AsyncEngine(model=..., dtype=...)`` or ``AsyncEngine(EngineConfig(...))``; options given beside a config
    replace its own. Use it as ``async with AsyncEngine() as engine``, or call `start` and `aclose`, also from
    different tasks. It belongs to the event loop that started it. Raises `ConfigError` on a wrong option.
    """

    # Requests.

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: float = 0,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        cache_salt: str = "",
    ) -> TokenStream:
        """Accept a prompt, text or token ids, and return the stream of its answers.

        Not a coroutine: what is wrong is raised at once, before anything is accepted. ``priority`` is smaller
        for sooner; ``timeout`` bounds the whole request and ``queue_timeout`` its time in the queue, in
        seconds; requests share cached prefixes only with those of the same ``cache_salt``.

        Raises `InvalidRequestError`, `ContextLengthError`, `EngineOverloadedError` (try again later),
        `EngineClosedError` and `EngineDeadError`. Long texts, of the prompt or of bad words, are encoded in
        the background; what is found wrong then is raised by the stream.
        """
        model = self._check_running()
        options = self._options(params, request_id, priority, timeout, queue_timeout, cache_salt)
        texts = [*options.params.bad_words, *([prompt] if isinstance(prompt, str) else ())]
        encode = partial(prompt_ids, model, prompt)
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return self._open(options, make_submission(model, encode(), options))
        return self._open_later(options, encode, long=is_long(texts))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        special_tokens_in_messages: bool = True,
        request_id: str | None = None,
        priority: float = 0,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        cache_salt: str = "",
    ) -> TokenStream:
        """Accept a conversation (``{"role": ..., "content": ...}`` each), and return the stream of answers.

        The model's chat template is applied in the background, so what is wrong with the messages
        (`ChatTemplateError`, `ContextLengthError`) is raised by the stream. Messages may spell special
        tokens, as with ``transformers``; without ``special_tokens_in_messages`` that is text like any other,
        so what others have written cannot begin a turn of its own. The rest is as for `generate`.
        """
        model = self._check_running()
        options = self._options(params, request_id, priority, timeout, queue_timeout, cache_salt)
        render = partial(
            render_prompt, model, messages, tools, chat_template_kwargs, special_tokens_in_messages
        )
        is_much = is_long(messages, tools, chat_template_kwargs, options.params.bad_words)
        return self._open_later(options, lambda: render().token_ids, long=is_much)

    def _options(
        self,
        params: SamplingParams | None,
        request_id: str | None,
        priority: float,
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

    def _open_later(
        self, options: RequestOptions, encode: Callable[[], Sequence[int]], *, long: bool
    ) -> TokenStream:
        """Take a place for a request at once, and submit it when its prompt is encoded."""
        request, stream = self._accept(options, None)
        self._start_clock(request, options)
        model = self._loaded_model()

        def prepare() -> Submission:
            if not request.is_wanted:
                raise RequestAbortedError("nobody waits for this prompt any more")
            return make_submission(model, encode(), options)

        self._worker.submit(
            prepare, lambda outcome: self._bridge.post(self._take_encoded, request, outcome), long=long
        )
        return stream

    def _start_clock(self, request: AcceptedRequest, options: RequestOptions) -> None:
        """End the request at its timeout, if that comes before the executor thread knows of it."""
        bounds = {"queue_timeout": options.queue_timeout, "timeout": options.timeout}
        timeouts = [(seconds, name) for name, seconds in bounds.items() if seconds is not None]
        if not timeouts:
            return
        seconds, name = min(timeouts)
        error = RequestTimeoutError(f"the prompt was not encoded within the request's {name}, {seconds:g} s")
        left = options.arrival_time + seconds - time.monotonic()
        request.stop_clock = self._bridge.call_later(left, self._table.end, request, error)

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
        request.stop_clock()
        stream.prompt_token_ids = submission.prompt_token_ids
        request.is_submitted = True
        self._executor.mailbox.put(Add(submission))

    def abandon(self, request_id: str) -> None:
        """Abort a request whose reader has gone. For streams; never blocks, safe in ``__del__``."""
        self._executor.mailbox.put(Abort(request_id))

    def wake(self) -> None:
        """Tell the executor thread that a stream has room again. For streams."""
        self._executor.mailbox.wake()

    def is_here(self) -> bool:
        """Whether the caller runs on the engine's event loop. For streams."""
        return self._bridge.is_here()

    # Text.

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a prompt, without holding up the event loop.

        Like `decode` and `render_chat`, raises `EngineOverloadedError` when too many such calls wait.
        """
        model = self._check_running()
        encode = partial(encode_prompt, model, text, add_special_tokens=add_special_tokens)
        if isinstance(text, str) and len(text) <= INLINE_CHARACTERS:
            return encode()
        return await self._on_worker(encode, long=is_long(text))

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids, without holding up the event loop."""
        model = self._check_running()
        decode = partial(decode_ids, model, token_ids, skip_special_tokens=skip_special_tokens)
        if len(token_ids) <= INLINE_TOKENS:
            return decode()
        return await self._on_worker(decode, long=is_long(token_ids))

    async def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        special_tokens_in_messages: bool = True,
    ) -> RenderedPrompt:
        """Return the text and token ids that `chat` would give to the model."""
        model = self._check_running()
        render = partial(
            render_prompt, model, messages, tools, chat_template_kwargs, special_tokens_in_messages
        )
        return await self._on_worker(render, long=is_long(messages, tools, chat_template_kwargs))

    async def template_reads(self, names: Collection[str]) -> frozenset[str]:
        """Return those of the variables' names, such as ``enable_thinking``, that the chat template reads."""
        templates = self._check_running().chat_templates
        if templates is None or not names:
            return frozenset()
        return await self._on_worker(lambda: frozenset(filter(templates.uses, names)), long=False)

    async def _on_worker(self, function: Callable[[], T], *, long: bool) -> T:
        """Call a function on a helper thread; not at all, if the caller has gone before its turn comes."""
        if self._waiting_texts >= MAX_WAITING_TEXTS:
            raise EngineOverloadedError(
                f"{self._waiting_texts} texts are waiting to be prepared, which is the limit: try again later"
            )
        done, gone = anyio.Event(), threading.Event()
        outcomes: list[Outcome[T]] = []

        def call() -> T:
            if gone.is_set():
                raise RequestAbortedError("the caller has gone")
            return function()

        def finish(outcome: Outcome[T]) -> None:
            self._waiting_texts -= 1
            outcomes.append(outcome)
            done.set()

        self._waiting_texts += 1
        self._worker.submit(call, lambda outcome: self._bridge.post(finish, outcome), long=long)
        try:
            await done.wait()
        finally:
            gone.set()
        return outcomes[0].get()

    # What it is doing.

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
