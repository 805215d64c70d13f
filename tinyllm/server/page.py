"""``GET /``: the web page if the package has one, else a plain page that names the endpoints."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Final

from quart import Blueprint, Response, current_app

from tinyllm.server.errors import RefusedError
from tinyllm.server.service import current_service

__all__ = ["blueprint", "html_page"]

blueprint = Blueprint("page", __name__)

_PACKAGE: Final = Path(__file__).parent.parent
WEB: Final = next(
    (path for path in (_PACKAGE / "web", _PACKAGE.parent / "web") if (path / "index.html").is_file()),
    _PACKAGE / "web",
)
"""Where the page is: inside an installed package, or beside it in a checkout."""

KINDS: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
}
"""What is served, and as what; nothing else is."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
"""Content security policy: only files of our own, nothing inline."""


@blueprint.get("/")
async def index() -> Response:
    """Return the page."""
    page = WEB / "index.html"
    return _page(page.read_bytes(), "text/html") if page.is_file() else html_page(_plain_page())


@blueprint.get("/static/<path:name>")
async def static_file(name: str) -> Response:
    """Return one of the page's files."""
    path = (WEB / name).resolve()
    kind = KINDS.get(path.suffix)
    if kind is None or not path.is_relative_to(WEB.resolve()) or not path.is_file():
        raise RefusedError(404, "not_found", "there is no such file")
    return _page(path.read_bytes(), kind)


def _page(body: bytes, kind: str) -> Response:
    response = Response(body, content_type=f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
    response.headers["content-security-policy"] = POLICY
    response.headers["cache-control"] = "no-cache"
    return response


def html_page(body: str) -> Response:
    """Return a plain page. ``body`` is HTML."""
    start = '<!doctype html><html lang="en"><meta charset="utf-8"><title>tinyllm</title>'
    return _page(f"{start}{body}</html>".encode(), "text/html")


def _plain_page() -> str:
    rules = sorted(
        (rule.rule, sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}))
        for rule in current_app.url_map.iter_rules()
    )
    rows = "".join(
        f"<li><code>{' '.join(methods)} {html.escape(path)}</code></li>" for path, methods in rules
    )
    name = html.escape(current_service().model_names[0])
    return (
        f"<h1>tinyllm</h1><p>Serves {name} to OpenAI clients: their base URL is this address and /v1.</p>"
        f'<ul>{rows}</ul><p><a href="docs">What they take</a></p>'
    )
