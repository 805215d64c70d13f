"""What a run against a server leaves behind: its requests, its figures, and their JSON.

::

    {"schema": 1, "kind": "serve",
     "metadata": {...},         # environment, server, model, dataset, arrivals, every option
     "summary": {...},          # see metrics.py
     "timeline": [{"t", "in_flight", "running", "waiting", "kv_usage", "output_tokens"}, ...],
     "client_lag": {"p50_ms", "p99_ms", "max_ms", ...},
     "server_metrics": {"before": {name: value}, "after": {name: value}},
     "warnings": ["..."],
     "requests": [{...}, ...]}  # only of a detailed file
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tinyllm.errors import ConfigError

__all__ = ["SCHEMA", "Limits", "RequestRecord", "RunResult", "TimelinePoint", "read_result", "write_result"]

SCHEMA: Final = 1
"""Goes up when a field changes its meaning."""
_FILE_DIGITS: Final = 6
"""Of seconds: microseconds."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a good request stays within, in milliseconds; None is no limit."""

    ttft: float | None = None
    tpot: float | None = None
    e2el: float | None = None

    def to_json(self) -> dict[str, float]:
        """Return the limits that there are."""
        return {name: limit for name, limit in dataclasses.asdict(self).items() if limit is not None}


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it. Times are seconds from the run's start."""

    index: int
    label: str = ""
    """The kind of request, such as ``short`` or ``long``; figures are also given by kind."""
    conversation: int = 0
    turn: int = 0
    scheduled: float = 0.0
    """When it was due: by the arrivals, or once the turn before it was answered, or its slot was free."""
    sent: float | None = None
    """When it was sent; None if it never was."""
    first: float | None = None
    """When the first output came."""
    finished: float | None = None
    """When the last chunk came; of a failed request, when it failed."""
    chunks: list[float] = field(default_factory=list)
    """When each chunk with output came."""
    asked_tokens: int | None = None
    """The most output tokens it asked for."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """From the server's ``usage`` or, where it has none, the number of chunks with output."""
    cached_tokens: int | None = None
    """Prompt tokens from the server's prefix cache; None where the server does not say."""
    usage: bool = False
    """Whether the server sent ``usage``."""
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    """The kind of error, such as ``http_429`` or ``disconnected``; None if it was answered in full."""
    message: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it was answered in full."""
        return self.error is None and self.finished is not None

    @property
    def delay(self) -> float | None:
        """Seconds from when it was due to when it was sent."""
        return None if self.sent is None else self.sent - self.scheduled

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds: from sending to the first chunk with output."""
        return None if self.sent is None or self.first is None else self.first - self.sent

    @property
    def e2el(self) -> float | None:
        """End-to-end latency, in seconds: from sending to the last chunk."""
        return None if self.sent is None or self.finished is None else self.finished - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, in seconds; None with fewer than two tokens."""
        ttft, e2el, tokens = self.ttft, self.e2el, self.output_tokens
        if ttft is None or e2el is None or tokens is None or tokens < 2:
            return None
        return (e2el - ttft) / (tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies, in seconds: between each two chunks with output."""
        return [after - before for before, after in zip(self.chunks, self.chunks[1:], strict=False)]

    def good(self, limits: Limits) -> bool:
        """Return whether it was answered in full and within every limit."""
        latencies = ((self.ttft, limits.ttft), (self.tpot, limits.tpot), (self.e2el, limits.e2el))
        return self.ok and all(
            seconds is None or limit is None or seconds * 1e3 <= limit for seconds, limit in latencies
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields, times to the microsecond."""
        times = {
            name: None if (seconds := getattr(self, name)) is None else round(seconds, _FILE_DIGITS)
            for name in ("scheduled", "sent", "first", "finished")
        }
        chunks = [round(seconds, _FILE_DIGITS) for seconds in self.chunks]
        return dataclasses.asdict(self) | times | {"chunks": chunks}


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The state of client and server at one moment; None where the server does not say."""

    t: float
    """Seconds from the run's start."""
    in_flight: int
    """Requests that were sent and are not finished, counted by the client."""
    output_tokens: int
    """Chunks with output that have come since the run's start."""
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """The part of the KV cache in use, 0 to 1."""


@dataclass(slots=True)
class RunResult:
    """A whole run."""

    metadata: dict[str, Any]
    requests: list[RequestRecord]
    """Empty if read from a file that has no details."""
    summary: dict[str, Any]
    timeline: list[TimelinePoint]
    client_lag: dict[str, Any]
    server_metrics: dict[str, dict[str, float]]
    """``before`` and ``after`` the run: name of a series of ``/metrics`` -> its value over all labels."""
    warnings: list[str] = field(default_factory=list)

    def to_json(self, *, detailed: bool = True) -> dict[str, Any]:
        """Return what goes into the file; ``detailed``: with every request."""
        report: dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "serve",
            "metadata": self.metadata,
            "summary": self.summary,
            "timeline": [dataclasses.asdict(point) for point in self.timeline],
            "client_lag": self.client_lag,
            "server_metrics": self.server_metrics,
            "warnings": self.warnings,
        }
        if detailed:
            report["requests"] = [record.to_json() for record in self.requests]
        return report

    @classmethod
    def from_json(cls, report: Mapping[str, Any]) -> RunResult:
        """Return the run of `to_json`. Raises `ConfigError` if it is none."""
        if report.get("kind") != "serve" or report.get("schema") != SCHEMA:
            raise ConfigError(f"no result of `tinyllm bench serve` (schema {SCHEMA})")
        try:
            return cls(
                metadata=dict(report["metadata"]),
                requests=[RequestRecord(**fields) for fields in report.get("requests", ())],
                summary=dict(report["summary"]),
                timeline=[TimelinePoint(**fields) for fields in report["timeline"]],
                client_lag=dict(report["client_lag"]),
                server_metrics={key: dict(values) for key, values in report["server_metrics"].items()},
                warnings=list(report["warnings"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"a damaged result of `tinyllm bench serve`: {error}") from None


def write_result(path: Path, result: RunResult, *, detailed: bool = True) -> None:
    """Write a run's JSON."""
    path.write_text(json.dumps(result.to_json(detailed=detailed)) + "\n", encoding="utf-8")


def read_result(path: Path) -> RunResult:
    """Read what `write_result` wrote. Raises `ConfigError` that names the file, `OSError`."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path.name} is no JSON: {error}") from None
    try:
        return RunResult.from_json(report if isinstance(report, dict) else {})
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from None
