"""API keys: read once, kept as digests, compared without a hint of how near a guess was."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from tinyllm.artifacts.files import read_option_file
from tinyllm.errors import ConfigError
from tinyllm.server.settings import ServerConfig

__all__ = ["Caller", "KeyRing", "load_keys"]

MIN_KEY_LENGTH = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as far as the server knows: one API key, or anybody."""

    name: str
    """Safe to log: says which key, and nothing about it. Empty where there are no keys."""


ANYBODY = Caller("")


class KeyRing:
    """The keys that open the server; an empty ring is open to anybody."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = {_digest(key): Caller(_name(key)) for key in keys}

    def __len__(self) -> int:
        return len(self._digests)

    def caller(self, key: str | None) -> Caller | None:
        """Return who has this key; None if it is none of ours. No key and a wrong key take the same time."""
        if not self._digests:
            return ANYBODY
        digest = _digest(key or "")
        found = None
        for ours, caller in self._digests.items():
            if hmac.compare_digest(ours, digest):
                found = caller
        return found


def load_keys(config: ServerConfig) -> KeyRing:
    """Return the keys of the variable and the file. Raises `ConfigError` if the file or a key is no good."""
    keys = config.api_keys
    if config.api_key_file is not None:
        keys += _read(config.api_key_file)
    for number, key in enumerate(keys, 1):
        if len(key) < MIN_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError(
                f"API key {number} is no good: keys are at least {MIN_KEY_LENGTH} printable ASCII characters "
                "without spaces. A good one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
    return KeyRing(keys)


def _read(path: Path) -> tuple[str, ...]:
    lines = read_option_file(path, "the API key file").splitlines()
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise ConfigError(f"the API key file {path.name} has no keys in it")
    return keys


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="replace")).digest()


def _name(key: str) -> str:
    """Tell keys apart in logs and caches: a digest of the digest, cut short."""
    return hashlib.sha256(_digest(key)).hexdigest()[:12]
