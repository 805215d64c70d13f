"""`HTTPMetrics`: what the server answered and how long it took, in the names that dashboards know."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from tinyllm.metrics import FIRST_TOKEN_BUCKETS

__all__ = ["HTTPMetrics"]

METHODS: Final = frozenset({"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"})
CLIENT_GONE: Final = 499
"""Stands for the status of a request whose client went away before an answer, as in other servers' logs."""


class HTTPMetrics:
    """One application's metrics. Labels come from fixed sets, so clients cannot make series."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "http_requests",
            "Requests, by route (none: refused before it was looked for), and status (499: the client left).",
            ("handler", "method", "status"),
            registry=self.registry,
        )
        self._duration = Histogram(
            "http_request_duration_seconds",
            "From a request's head to the end of its response; a stream's whole length.",
            ("handler", "method"),
            buckets=FIRST_TOKEN_BUCKETS,
            registry=self.registry,
        )

    def record(self, handler: str, method: str, status: int, seconds: float) -> None:
        """Count a request that has ended. ``status`` is 0 if nothing was answered."""
        method = method if method in METHODS else "other"
        self._requests.labels(handler or "none", method, str(status or CLIENT_GONE)).inc()
        self._duration.labels(handler or "none", method).observe(seconds)

    def text(self) -> str:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry).decode()
