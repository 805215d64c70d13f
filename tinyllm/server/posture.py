"""Whether it is safe to start like this, and what was decided, in words."""

from __future__ import annotations

import ipaddress

from tinyllm.errors import ConfigError
from tinyllm.server.settings import ServerConfig

__all__ = ["check_posture", "describe_posture", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_posture(config: ServerConfig) -> None:
    """Refuse options that are wrong together, or open the server to a network without meaning to.

    Raises `ConfigError`.
    """
    if config.workers != 1:
        raise ConfigError(
            "workers must be 1: each worker would load its own copy of the model, and they could not batch "
            "together. To use more machines, start one server on each and put a load balancer in front"
        )
    if (config.ssl_certfile is None) != (config.ssl_keyfile is None):
        raise ConfigError("ssl_certfile and ssl_keyfile are needed together")
    if not (is_loopback(config.host) or config.has_keys or config.allow_unauthenticated):
        raise ConfigError(
            f"{config.host} can be reached from other machines, and there are no API keys: set "
            "TINYLLM_API_KEYS or --api-key-file, or say --allow-unauthenticated if anybody may use the model"
        )


def describe_posture(config: ServerConfig) -> str:
    """Return one line: who can reach the server, and what they need."""
    reach = "this machine" if is_loopback(config.host) else "the network"
    keys = "API keys needed" if config.has_keys else "no API keys"
    tls = "TLS" if config.ssl_certfile else "no TLS"
    cache = "off" if not config.engine_config.enable_prefix_caching else config.prefix_cache
    return f"open to {reach}, {keys}, {tls}, prefix cache {cache}"
