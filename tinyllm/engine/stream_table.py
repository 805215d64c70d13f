"""`StreamTable`: every accepted request on the event loop's side, and the stream it feeds."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from tinyllm.config import EngineConfig
from tinyllm.engine.admission import Admission, Ticket
from tinyllm.engine.messages import Delivery
from tinyllm.engine.stream import TokenStream
from tinyllm.errors import InvalidRequestError, TinyLLMError

__all__ = ["AcceptedRequest", "StreamTable"]


@dataclass(slots=True, eq=False)
class AcceptedRequest:
    """One accepted request, until its last word."""

    request_id: str
    ticket: Ticket
    stream: weakref.ref[TokenStream]
    """Weak, so that a stream nobody holds any more is collected, and aborts."""
    is_submitted: bool = False
    """Whether the executor thread knows of it; until then its prompt is being encoded."""
    is_aborting: bool = False
    stop_clock: Callable[[], object] = lambda: None
    """Calls off what ends it at its timeout; until it is submitted, that is the event loop's task."""

    @property
    def is_wanted(self) -> bool:
        """Whether somebody may still read what comes of it."""
        stream = self.stream()
        return stream is not None and not stream.has_ended


class StreamTable:
    """Accepts requests within bounds, hands deliveries to streams, and frees each request's place at its end.

    Everything happens on the event loop, so counts are exact.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.admission = Admission(config)
        self._requests: dict[str, AcceptedRequest] = {}
        self._emptied: anyio.Event | None = None

    def __len__(self) -> int:
        return len(self._requests)

    def get(self, request_id: str) -> AcceptedRequest | None:
        """Return the accepted request with this id, if it has not ended."""
        return self._requests.get(request_id)

    def ids(self) -> list[str]:
        """Return the ids of all accepted requests."""
        return list(self._requests)

    def open(
        self, request_id: str, answers: int, tokens: int | None, make_stream: Callable[[], TokenStream]
    ) -> tuple[AcceptedRequest, TokenStream]:
        """Accept a request. ``tokens`` is the length of its prompt, or None if it is not known yet.

        Raises `EngineOverloadedError` when there is no room, and `InvalidRequestError` for an id in use.
        """
        if request_id in self._requests:
            raise InvalidRequestError(
                "this request_id is in use: choose another, or wait until that request has ended",
                param="request_id",
            )
        ticket = self.admission.enter(answers)
        try:
            if tokens is not None:
                self.admission.add_tokens(ticket, tokens)
        except TinyLLMError:
            self.admission.leave(ticket)
            raise
        stream = make_stream()
        request = AcceptedRequest(request_id, ticket, weakref.ref(stream))
        self._requests[request_id] = request
        return request, stream

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take a step's results."""
        for delivery in deliveries:
            request = self._requests.get(delivery.request_id)
            if request is None:
                continue
            if delivery.started:
                self.admission.starts(request.ticket)
            stream = request.stream()
            if stream is not None:
                stream.deliver(delivery)
            if delivery.finished:
                self._remove(request)

    def end(self, request: AcceptedRequest, error: TinyLLMError) -> None:
        """End one request here and now; nothing, if it has ended."""
        if self._requests.get(request.request_id) is not request:
            return
        stream = request.stream()
        if stream is not None:
            stream.end(error)
        self._remove(request)

    def end_all(self, make_error: Callable[[], TinyLLMError]) -> None:
        """End every request: nothing comes from the executor thread any more."""
        for request in list(self._requests.values()):
            self.end(request, make_error())

    async def wait_empty(self) -> None:
        """Wait until every accepted request has ended."""
        while self._requests:
            if self._emptied is None:
                self._emptied = anyio.Event()
            await self._emptied.wait()

    def _remove(self, request: AcceptedRequest) -> None:
        del self._requests[request.request_id]
        request.stop_clock()
        self.admission.leave(request.ticket)
        if not self._requests and self._emptied is not None:
            self._emptied.set()
            self._emptied = None
