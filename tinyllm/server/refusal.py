"""`Refusal`: what is answered to bytes that never become a request, in the same form as everything else."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from tinyllm.server.context import make_request_id
from tinyllm.server.errors import Fault, error_bytes
from tinyllm.server.guard import SAFE_HEADERS

__all__ = ["Refusal", "refuse"]

logger = logging.getLogger("tinyllm.http")

_FAULTS: Final = {
    400: Fault(400, "this is not a well-formed HTTP request", "bad_request"),
    403: Fault(403, "there are no WebSockets here", "websocket_refused"),
    431: Fault(
        431, "the request's head is too large (--max-header-bytes, --max-url-bytes)", "headers_too_large"
    ),
    501: Fault(501, "bodies are plain or chunked; other transfer codings are not known", "not_implemented"),
    503: Fault(
        503,
        "too many connections: try again later (--max-connections)",
        "too_many_connections",
        None,
        {"retry-after": "1"},
    ),
    505: Fault(505, "HTTP/2 without TLS is off (--h2c turns it on)", "http_version_not_supported"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A whole response but for how the protocol frames it."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


def refuse(status: int, request_id: str | None = None) -> Refusal:
    """Return the response, and note it in the log, which otherwise knows nothing of such requests.

    ``request_id`` is that of the request whose body turned out to be no good; without one, one is made.
    """
    fault = _FAULTS.get(status, _FAULTS[400])
    known = request_id is not None
    request_id = make_request_id(request_id)
    if not known:
        logger.info("no request: %s %s", fault.status, fault.code, extra={"request_id": request_id})
    body = error_bytes(fault)
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "x-request-id": request_id,
        **SAFE_HEADERS,
        **fault.headers,
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Refusal(fault.status, encoded, body)
