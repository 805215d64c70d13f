"""A stand-in for the Hub: the few endpoints that the real ``huggingface_hub`` library asks for a model."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Repositories by id; each has files by commit, and branches that point to commits."""

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    token: str | None = None
    """Needed by every request, if set."""
    fail: Callable[[str, str], tuple[int, dict[str, str]] | None] = lambda method, path: None
    """Returns a status and headers to answer a request with instead."""
    cut_once: dict[str, int] = field(default_factory=dict)
    """File -> number of bytes after which its first transfer breaks."""
    after: Callable[[str, str], None] = lambda method, path: None
    """Called after each request."""
    requests: list[tuple[str, str, Message]] = field(default_factory=list)
    """Method, path and headers of every request."""
    url: str = ""

    def fetched(self) -> set[str]:
        """Return the names of the files whose content was asked for."""
        return {
            path.rsplit("/resolve/", 1)[1].split("/", 1)[1]
            for method, path, _ in self.requests
            if method == "GET" and "/resolve/" in path
        }

    def start(self) -> ThreadingHTTPServer:
        """Serve in a thread of its own until the server is shut down."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, method: str) -> None:
        quoted = urlsplit(self.path).path
        path = unquote(quoted)
        self.hub.requests.append((method, path, self.headers))
        if fault := self.hub.fail(method, path):
            self._send(*fault)
        elif self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            self._send(401, {"X-Error-Code": "RepoNotFound"})
        elif path.startswith("/api/models/"):
            self._api([unquote(part) for part in quoted.removeprefix("/api/models/").split("/")])
        elif "/resolve/" in path:
            self._resolve(path.strip("/").split("/"), method)
        else:  # what the library asks beside models
            self._send(404, {})
        self.hub.after(method, path)

    def _commit(self, repo: str, revision: str) -> str | None:
        if repo not in self.hub.repos:
            self._send(404, {"X-Error-Code": "RepoNotFound"})
            return None
        commit = self.hub.branches.get((repo, revision), revision)
        if commit not in self.hub.repos[repo]:
            self._send(404, {"X-Error-Code": "RevisionNotFound"})
            return None
        return commit

    def _api(self, parts: list[str]) -> None:
        """Answer ``ORG/NAME``, ``ORG/NAME/revision/REVISION`` and ``ORG/NAME/tree/REVISION``."""
        repo, revision = "/".join(parts[:2]), parts[3] if len(parts) > 3 else "main"
        commit = self._commit(repo, revision)
        if commit is None:
            return
        files = self.hub.repos[repo][commit]
        if len(parts) > 2 and parts[2] == "tree":
            body: Any = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in files.items()
            ]
        else:
            body = {
                "id": repo,
                "modelId": repo,
                "sha": commit,
                "siblings": [{"rfilename": name} for name in files],
            }
        self._send(200, {"Content-Type": "application/json"}, json.dumps(body).encode())

    def _resolve(self, parts: list[str], method: str) -> None:
        """Answer ``ORG/NAME/resolve/REVISION/FILE``, also a part of the file."""
        repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        commit = self._commit(repo, revision)
        if commit is None:
            return
        content = self.hub.repos[repo][commit].get(name)
        if content is None:
            self._send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
        }
        status, start = 200, 0
        if wanted := self.headers.get("Range"):
            start = int(wanted.removeprefix("bytes=").split("-")[0])
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        limit = self.hub.cut_once.pop(name, None) if method == "GET" else None
        self._send(status, headers, content[start:], limit)

    def _send(
        self, status: int, headers: dict[str, str], body: bytes = b"", limit: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(body[:limit])
        if limit is not None:
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True
