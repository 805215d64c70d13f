"""What an error looks like over HTTP: one table from error class to status, and OpenAI's envelope."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from werkzeug.exceptions import HTTPException

from tinyllm.errors import (
    EngineClosedError,
    EngineDeadError,
    EngineOverloadedError,
    InvalidRequestError,
    NoTokenLeftError,
    RequestAbortedError,
    RequestError,
    RequestFailedError,
    RequestTimeoutError,
    TinyLLMError,
)
from tinyllm.server.json_text import compact_json

__all__ = ["NO_RETRY", "Fault", "RefusedError", "error_body", "error_bytes", "fault_of"]

RETRY_WHILE_LOADING: Final = 2
NO_RETRY: Final = {"x-should-retry": "false"}
"""Clients retry 408, 409, 429 and 5xx by themselves; this says that it would only cost the same again."""

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def _type_of(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as a client sees it. ``code`` is stable; ``message`` is for people."""

    status: int
    message: str
    code: str | None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class RefusedError(TinyLLMError):
    """The server itself refuses a request, before the engine hears of it."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.fault = Fault(status, message, code, param, headers or {})


# The first class that fits counts. None keeps the error's own code.
_TABLE: Final[tuple[tuple[type[TinyLLMError], int, str | None], ...]] = (
    (InvalidRequestError, 400, None),
    (EngineOverloadedError, 429, None),
    (EngineClosedError, 503, "server_shutting_down"),
    (EngineDeadError, 503, None),
    (RequestTimeoutError, 504, None),
    (RequestAbortedError, 409, None),
    (NoTokenLeftError, 400, None),
    (RequestFailedError, 500, None),
    (RequestError, 500, None),
)

_INTERNAL: Final = Fault(
    500, "internal error: the server's log has the cause under this request's id", "internal_error"
)

_CODES: Final = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    413: "body_too_large",
    415: "unsupported_media_type",
}

_MESSAGES: Final = {
    400: "the request is malformed",
    404: "there is nothing at this path: OpenAI's API is below /v1, and GET /docs lists all there is",
    405: "this path does not take this method",
    408: "the body did not arrive in time",
    413: "the body is larger than this server takes (--max-body-bytes)",
    415: "the body must be JSON, with content-type: application/json",
}


def fault_of(error: BaseException, field_names: Mapping[str, str]) -> Fault:
    """Return how ``error`` is told to a client. What is not ours is told without its text.

    ``field_names`` has what the client calls fields that the engine has other names for.
    """
    if isinstance(error, RefusedError):
        return error.fault
    if isinstance(error, HTTPException):
        return _fault_of_http(error)
    for kind, status, code in _TABLE:
        if isinstance(error, kind):
            param = getattr(error, "param", None)
            param = field_names.get(param or "", param)
            return Fault(status, str(error), code or error.code, param, _retry_headers(error, status))
    return _INTERNAL


def error_body(fault: Fault) -> dict[str, Any]:
    """Return OpenAI's error envelope."""
    return {
        "error": {
            "message": fault.message,
            "type": _type_of(fault.status),
            "param": fault.param,
            "code": fault.code,
        }
    }


def error_bytes(fault: Fault) -> bytes:
    """Return the envelope as JSON on one line."""
    return compact_json(error_body(fault)).encode()


def _retry_headers(error: TinyLLMError, status: int) -> Mapping[str, str]:
    if isinstance(error, EngineOverloadedError):
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if isinstance(error, EngineClosedError):
        return {"retry-after": str(RETRY_WHILE_LOADING)}
    return NO_RETRY


def _fault_of_http(error: HTTPException) -> Fault:
    """Say in our words what the framework refused."""
    status = error.code if error.code is not None and error.code >= 400 else 500
    if status >= 500:
        return _INTERNAL
    headers = {name.lower(): value for name, value in error.get_headers() if name.lower() == "allow"}
    message = _MESSAGES.get(status, f"the request was refused with status {status}")
    return Fault(status, message, _CODES.get(status, "bad_request"), None, headers)
