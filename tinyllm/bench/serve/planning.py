"""`make_plan`: from options to a load that can be put on a server."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tinyllm.bench.environment import machine
from tinyllm.bench.serve.arrivals import Arrivals
from tinyllm.bench.serve.client import Target, open_client
from tinyllm.bench.serve.datasets import make_samples, shares_prompts
from tinyllm.bench.serve.load import Plan
from tinyllm.bench.serve.metrics import PERCENTILES
from tinyllm.bench.serve.records import Limits
from tinyllm.bench.serve.samples import COMPLETIONS
from tinyllm.bench.serve.server_view import ready_target
from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions, ServerOptions
from tinyllm.errors import ConfigError

__all__ = ["arrivals_of", "make_plan", "pair", "parse_goodput", "target_of"]

KEY_VARIABLE: Final = "OPENAI_API_KEY"


async def make_plan(
    server: ServerOptions,
    dataset: DatasetOptions,
    arrivals: ArrivalOptions,
    *,
    limits: Limits | None = None,
    percentiles: Sequence[float] = PERCENTILES,
    metadata: Mapping[str, Any] | None = None,
) -> Plan:
    """Wait for the server, and make the prompts. Raises `ConfigError`, `EngineError` if it is not ready."""
    dataset.check()
    when = arrivals_of(arrivals, dataset.seed)
    target = await ready_target(target_of(server), server.ready_check_timeout_sec)
    async with open_client(target) as client:
        samples = await make_samples(dataset, client)
    measured = max(1, min(dataset.num_prompts, len(samples) - dataset.num_warmups))
    return Plan(
        target=target,
        samples=samples[:measured],
        warmups=samples[measured:],
        arrivals=when,
        limits=limits or Limits(),
        percentiles=percentiles,
        shares_prompts=shares_prompts(dataset),
        metadata={
            "environment": machine(),
            "dataset": dataset.model_dump(mode="json", exclude={"dataset_path", "tokenizer"})
            | {"file": dataset.dataset_path and dataset.dataset_path.name},
            **(metadata or {}),
        },
    )


def target_of(options: ServerOptions) -> Target:
    """Return the server to ask. Raises `ConfigError`; `OSError` if the key's file cannot be read."""
    return Target(
        base_url=options.base_url,
        backend=COMPLETIONS if options.backend == "vllm" else options.backend,
        model=options.model or "",
        endpoint=options.endpoint,
        api_key=_api_key(options.api_key_file),
        headers=dict(pair("--header", text) for text in options.header),
        extra_body=_extra_body(options.extra_body),
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        timeout=options.request_timeout_sec,
    )


def arrivals_of(options: ArrivalOptions, seed: int) -> Arrivals:
    """Return when requests are due. Raises `ConfigError`."""
    return Arrivals(
        request_rate=options.request_rate,
        burstiness=options.burstiness,
        max_concurrency=options.max_concurrency,
        ramp_up=options.ramp_up_strategy,
        ramp_up_start_rps=options.ramp_up_start_rps,
        ramp_up_end_rps=options.ramp_up_end_rps,
        use_timestamps=options.replay_timestamps,
        time_scale=options.time_scale,
        seed=seed,
    )


def parse_goodput(texts: Sequence[str]) -> Limits:
    """Read limits such as ``ttft:200 tpot:50``, in milliseconds. Raises `ConfigError`."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition(":")
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = -1
        if name not in Limits.__slots__ or not limits[name] > 0:
            raise ConfigError(f"--goodput takes ttft:MS, tpot:MS and e2el:MS (got {text[:40]!r})")
    return Limits(**limits)


def _api_key(path: Path | None) -> str | None:
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    lines = path.read_text(encoding="utf-8").split()
    if not lines:
        raise ConfigError(f"--api-key-file: {path.name} has no key")
    return lines[0]


def _extra_body(text: str | None) -> dict[str, Any]:
    try:
        body = json.loads(text or "{}")
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ConfigError("--extra-body takes a JSON object, such as '{\"top_p\": 0.9}'")
    return body


def pair(flag: str, text: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``. Raises `ConfigError`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{flag} takes NAME=VALUE (got {text[:40]!r})")
    return name, value
