"""What a server says of itself: its models, whether it answers, and its ``/metrics``."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tinyllm.bench.serve.client import Client, Target, open_client
from tinyllm.bench.serve.meter import Clock, Meter
from tinyllm.bench.serve.records import RequestRecord
from tinyllm.bench.serve.samples import Dialogue
from tinyllm.errors import EngineError

__all__ = ["load_of", "parse_metrics", "read_metrics", "ready_target"]

RETRY_SECONDS: Final = 0.5
FINAL: Final = tuple(f"http_{status}" for status in (400, 401, 403, 404, 405, 415, 422))
"""Problems that another try would find again: a wrong key, a wrong name, a wrong path."""
_SERIES: Final = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)")
_PREFIXES: Final = ("tinyllm:", "vllm:", "sglang:", "llamacpp:", "http_", "process_")
_LOAD: Final = {
    "running": ("num_requests_running", "num_running_reqs", "requests_processing"),
    "waiting": ("num_requests_waiting", "num_queue_reqs", "requests_deferred"),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage", "kv_cache_usage_ratio"),
}
"""What servers call these: tinyllm and vLLM, SGLang, llama.cpp."""


async def ready_target(target: Target, patience: float) -> Target:
    """Return the target with its model's name, once the server has answered a short request.

    Tries for ``patience`` seconds, at least once; a refusal that waiting does not change ends it. Raises
    `EngineError` that has the server's last word.
    """
    clock = Clock()
    async with open_client(target) as client:
        while (problem := await _problem(client)) is not None:
            if clock.now() >= patience or problem.startswith(FINAL):
                raise EngineError(f"{target.root} is not ready: {problem}")
            await asyncio.sleep(RETRY_SECONDS)
        return client.target


async def _problem(client: Client) -> str | None:
    """Find the model's name where it is not given, and send a request; return what is wrong, if anything."""
    if not client.target.model:
        try:
            status, body = await client.get("/v1/models")
        except (OSError, TimeoutError) as error:
            return str(error) or "no answer to /v1/models"
        try:
            model = str(json.loads(body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            return f"http_{status}: /v1/models names no model; name it with --model"
        client.target = dataclasses.replace(client.target, model=model)
    record = RequestRecord(index=-1)
    await client.stream(Dialogue(client.target.backend).ask("Hello"), 1, record, Clock(), Meter())
    return None if record.ok else f"{record.error}: {record.message}"


async def read_metrics(client: Client) -> dict[str, float]:
    """Return the server's series, summed over labels; nothing where it has no ``/metrics`` for us."""
    try:
        status, body = await client.get("/metrics")
    except (OSError, TimeoutError):
        return {}
    return parse_metrics(body.decode(errors="replace")) if status == 200 else {}


def parse_metrics(text: str) -> dict[str, float]:
    """Read Prometheus' text format: series of model servers and of HTTP, without histograms' buckets."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is None or not match[1].startswith(_PREFIXES) or match[1].endswith(("_bucket", "_created")):
            continue
        try:
            values[match[1]] = values.get(match[1], 0.0) + float(match[2])
        except ValueError:
            continue
    return {name: value for name, value in values.items() if value == value}  # JSON has no NaN


def load_of(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Return ``running``, ``waiting`` and ``kv_usage``, None where the server has no such series."""
    short = {name.rpartition(":")[2]: value for name, value in metrics.items()}
    return {key: next((short[name] for name in names if name in short), None) for key, names in _LOAD.items()}
