"""What is looked at before a request's body is: framing, sizes, Host, Origin and key.

Each check stands alone and raises `RefusedError`. They see the ASGI scope, so they hold for every path, also
for static files and for what does not exist.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tinyllm.server.errors import NO_RETRY, RefusedError
from tinyllm.server.keys import Caller, KeyRing
from tinyllm.server.posture import is_loopback
from tinyllm.server.settings import ServerConfig

__all__ = [
    "check_caller",
    "check_framing",
    "check_host",
    "check_origin",
    "check_sizes",
    "cors_headers",
    "preflight",
]

OPEN_PATHS: Final = frozenset({"/health", "/live", "/ready", "/"})
"""These need no key. Everything else does, also what does not exist."""
OPEN_PREFIX: Final = "/static/"
"""The web page's own files."""

EXPOSED: Final = "x-request-id, x-tinyllm-ignored-fields, x-should-retry, retry-after"
"""Response headers that a configured site's page may read."""

_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_CLOSE: Final = {"connection": "close"}
_ONCE: Final = frozenset({b"authorization", b"content-encoding", b"content-type", b"host", b"origin"})
"""What decides who asks for what; of two, one reader takes the first and another the last."""

Headers = Mapping[str, str]


def check_framing(scope: Mapping[str, Any], headers: Headers, config: ServerConfig) -> None:
    """Refuse what two servers in a row could read differently (request smuggling), and HTTP/2 without TLS."""
    if "transfer-encoding" in headers and "content-length" in headers:
        message = "a request has either transfer-encoding or content-length, not both"
        raise RefusedError(400, "ambiguous_framing", message, headers=_CLOSE)
    once = [name for name, _ in scope["headers"] if name.lower() in _ONCE]
    if len(once) > len(set(once)):
        message = "a request has each of these headers once: " + ", ".join(sorted(map(bytes.decode, _ONCE)))
        raise RefusedError(400, "duplicate_header", message, headers=_CLOSE)
    http2 = scope["http_version"] == "2"
    if http2 and scope["scheme"] == "http" and not config.h2c:
        raise RefusedError(505, "http_version_not_supported", "HTTP/2 without TLS is off (--h2c turns it on)")
    if not http2 and not scope["http_version"].startswith("1."):
        raise RefusedError(505, "http_version_not_supported", "only HTTP/1.1 and HTTP/2 are spoken here")


def check_sizes(scope: Mapping[str, Any], config: ServerConfig) -> None:
    """Refuse long paths, and many or large headers."""
    if len(scope["raw_path"]) + len(scope["query_string"]) > config.max_url_bytes:
        raise RefusedError(
            414, "url_too_long", f"the path and query are longer than {config.max_url_bytes} bytes"
        )
    raw = scope["headers"]
    if (
        len(raw) > config.max_headers
        or sum(len(name) + len(value) + 4 for name, value in raw) > config.max_header_bytes
    ):
        limits = f"{config.max_headers} headers and {config.max_header_bytes} bytes"
        raise RefusedError(
            431, "headers_too_large", f"a request has at most {limits} of them", headers=_CLOSE
        )


def check_host(headers: Headers, config: ServerConfig) -> None:
    """Refuse names that are not ours: else any web page could reach a server on its visitor's machine.

    The trick (DNS rebinding) needs a name, so IP addresses are let through.
    """
    match = _HOST.fullmatch(headers.get("host", ""))
    if match is None:
        raise RefusedError(400, "invalid_host", "the Host header is missing or malformed", headers=_CLOSE)
    name = match["name"].lower().rstrip(".")
    allowed = {host.lower() for host in config.allowed_hosts}
    if name in _LOCAL_NAMES or name in allowed or "*" in allowed or name == config.host or _is_address(name):
        return
    raise RefusedError(
        421,
        "unknown_host",
        f"this server does not answer to {name[:80]!r}: start it with --allowed-hosts {name[:80]}",
        headers=NO_RETRY,
    )


def check_origin(scope: Mapping[str, Any], headers: Headers, config: ServerConfig) -> None:
    """Refuse requests that another site's page makes, unless that site is configured."""
    origin = headers.get("origin")
    if origin is not None:
        if not (_is_own(origin, headers) or _is_configured(origin, config)):
            message = "this page's origin may not use the server: start it with --cors-origins for that"
            raise RefusedError(403, "origin_not_allowed", message)
        return
    is_link = (
        scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
    )
    if headers.get("sec-fetch-site") == "cross-site" and not is_link:
        raise RefusedError(403, "origin_not_allowed", "requests that other sites make are refused")


def check_caller(scope: Mapping[str, Any], headers: Headers, config: ServerConfig, keys: KeyRing) -> Caller:
    """Return who asks. Raises a 401 unless they may, for every path that is not expressly open."""
    if not keys and not config.allow_unauthenticated and not _is_near(scope.get("client")):
        message = "without API keys this server answers only this machine"
        raise RefusedError(403, "remote_client", message, headers=_CLOSE)
    scheme, _, key = headers.get("authorization", "").partition(" ")
    caller = keys.caller(key.strip() if scheme.lower() == "bearer" else None)
    if caller is not None:
        return caller
    path = scope["path"]
    if path in OPEN_PATHS or path.startswith(OPEN_PREFIX) or (path == "/metrics" and config.public_metrics):
        return Caller("")
    message = "an API key is needed, as Authorization: Bearer KEY" if not key else "this API key is not known"
    raise RefusedError(
        401, "invalid_api_key", message, headers={"www-authenticate": 'Bearer realm="tinyllm"'}
    )


def cors_headers(headers: Headers, config: ServerConfig) -> dict[str, str]:
    """Return the headers that let a configured site's page read the response."""
    origin = headers.get("origin")
    if origin is None or not _is_configured(origin, config):
        return {}
    return {
        "access-control-allow-origin": origin,
        "access-control-expose-headers": EXPOSED,
        "vary": "origin",
    }


def preflight(scope: Mapping[str, Any], headers: Headers) -> dict[str, str] | None:
    """Return the headers that answer a browser's question before a request; None if this is none."""
    if (
        scope["method"] != "OPTIONS"
        or "access-control-request-method" not in headers
        or "origin" not in headers
    ):
        return None
    asked = headers.get("access-control-request-headers", "")
    names = [name.strip().lower() for name in asked.split(",")]
    allowed = [
        name
        for name in names
        if re.fullmatch(r"authorization|content-type|x-request-id|(x-stainless|openai)-[a-z-]+", name)
    ]
    return {
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": ", ".join(allowed),
        "access-control-max-age": "600",
    }


def _is_own(origin: str, headers: Headers) -> bool:
    try:
        netloc = urlsplit(origin).netloc
    except ValueError:
        return False
    return netloc.lower() == headers.get("host", "").lower() != ""


def _is_configured(origin: str, config: ServerConfig) -> bool:
    return "*" in config.cors_origins or origin in config.cors_origins


def _is_near(client: tuple[str, int] | None) -> bool:
    """Whether a request comes from this machine; a Unix socket gives no address."""
    return client is None or is_loopback(client[0])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
