"""`Call`: what is known about one HTTP request besides its body, from its first byte to its last."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from quart import request

from tinyllm.server.keys import Caller

if TYPE_CHECKING:
    from tinyllm.engine.stream import TokenStream

__all__ = ["Call", "current_call", "make_request_id"]

SCOPE_KEY: Final = "tinyllm.call"
MAX_ID_LENGTH: Final = 128


@dataclass(slots=True, eq=False)
class Call:
    """One HTTP request."""

    request_id: str
    """The client's own ``x-request-id``, or one made here; in the response's header and body and the log."""
    caller: Caller
    started: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    turn: float = 0.0
    """Steps of priority that it stands behind what other API keys send; see `Quotas`."""
    streams: list[TokenStream] = field(default_factory=list)
    """What the engine does for it."""
    at_end: list[Callable[[], object]] = field(default_factory=list)
    """Called when the request ends, however it ends."""
    handler: str = ""
    """The route that handles it, as it was declared; empty without one."""
    ignored_fields: list[str] = field(default_factory=list)
    """Fields of its body that mean nothing here."""
    field_names: Mapping[str, str] = field(default_factory=dict)
    """What its body calls things, where the engine has other names for them."""

    def close(self) -> None:
        """End all that still runs for this request: this is how a client that goes away stops its work."""
        for stream in self.streams:
            stream.close()
        for callback in self.at_end:
            callback()


def make_request_id(given: str | None) -> str:
    """Adopt what the client calls its request, if that can be shown and logged, else make an id."""
    return given if given is not None and is_request_id(given) else uuid.uuid4().hex


def is_request_id(text: str) -> bool:
    """Whether a client's own id is short and printable."""
    return 0 < len(text) <= MAX_ID_LENGTH and text.isascii() and text.isprintable() and " " not in text


def current_call() -> Call:
    """Return the call that is being handled."""
    scope: Any = request.scope
    call: Call = scope[SCOPE_KEY]
    return call
