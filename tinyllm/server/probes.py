"""What machines ask a server all day: is it alive, is it ready, how is it doing."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from quart import Blueprint, Response

from tinyllm.config import EngineConfig
from tinyllm.params import SamplingDefaults, SamplingParams
from tinyllm.server.body import json_response
from tinyllm.server.service import current_service

__all__ = ["blueprint"]

blueprint = Blueprint("probes", __name__)

HIDDEN_OPTIONS = frozenset(
    {"model", "hub_token", "cache_dir", "chat_template", "config", "api_keys", "api_key_file"}
    | {"ssl_certfile", "ssl_keyfile"}
)
"""Secrets, and places on this machine."""


@blueprint.get("/health")
@blueprint.get("/live")
async def health() -> Response:
    """Say that the event loop runs. Nothing is asked of the model."""
    return json_response({"status": "ok"})


@blueprint.get("/ready")
async def ready() -> Response:
    """Say whether requests are taken; a 503 names the reason."""
    service = current_service()
    if (refusal := service.not_ready()) is not None:
        raise refusal
    return json_response({"status": "ready", "model": service.model_names[0]})


@blueprint.get("/version")
async def get_version() -> Response:
    """Return tinyllm's version."""
    return json_response({"version": version("tinyllm")})


@blueprint.get("/metrics")
async def metrics() -> Response:
    """Return the engine's and the server's metrics in Prometheus' text format."""
    service = current_service()
    text = "" if service.loaded_engine is None else service.loaded_engine.metrics_text()
    text += service.http_metrics.text()
    return Response(text, content_type="text/plain; version=0.0.4; charset=utf-8")


@blueprint.get("/props")
async def props() -> Response:
    """Return what runs, with which options: every ``auto`` resolved, secrets and paths left out."""
    service = current_service()
    info = service.engine.info
    hidden = set(HIDDEN_OPTIONS)
    server_options = service.config.model_dump(mode="json", exclude=hidden | set(EngineConfig.model_fields))
    body: dict[str, Any] = {
        "model": service.model_names[0],
        "model_names": list(service.model_names),
        "version": version("tinyllm"),
        "system_fingerprint": service.fingerprint,
        "architecture": info.architecture,
        "revision": info.revision,
        "dtype": info.dtype,
        "kv_cache_dtype": info.kv_cache_dtype,
        "device": info.device,
        "attention_backend": info.attention_backend,
        "layers": info.layers,
        "vocab_size": info.vocab_size,
        "max_model_len": info.max_model_len,
        "num_kv_blocks": info.num_kv_blocks,
        "block_size": info.block_size,
        "reasoning": service.thinks,
        "api_keys": service.config.has_keys,
        "sampling_defaults": SamplingParams()
        .resolved(service.engine.sampling_defaults)
        .model_dump(mode="json", include=set(SamplingDefaults.model_fields)),
        "engine_options": service.config.engine_config.model_dump(mode="json", exclude=hidden),
        "server_options": server_options,
    }
    return json_response(body)
