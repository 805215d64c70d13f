"""From what a user calls a model to its checked files."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tinyllm.artifacts.directory import open_directory
from tinyllm.artifacts.model import ModelArtifacts
from tinyllm.errors import ConfigError, ModelNotFoundError

__all__ = ["Location", "fetch", "open_model"]

_REPO_ID: Final = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_MAX_REPO_ID: Final = 96


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model's files are on this machine."""

    kind: Literal["directory", "hub", "gguf"]
    name: str
    """The Hub's ``org/name``, or the last part of the path."""
    path: Path
    """Of the directory or the GGUF file."""
    revision: str | None = None
    """The Hub's commit."""


def open_model(
    model: str | None,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: bool = True,
) -> ModelArtifacts:
    """Find, fetch if needed, and check a model's files.

    ``model`` is a directory, the path of a ``.gguf`` file, a Hub id, or None for the demo model. ``revision``
    and ``token`` are for the Hub, ``cache_dir``, ``offline`` and ``progress`` for all that is fetched. Raises
    an `ArtifactError`, or `ConfigError` for a revision of something that has none.
    """
    if model is None:
        from tinyllm.artifacts.demo import open_demo

        _refuse_revision(revision)
        return open_demo(cache_dir=cache_dir, offline=offline or _hub_is_offline(), progress=progress)
    location = fetch(
        model, revision=revision, token=token, cache_dir=cache_dir, offline=offline, progress=progress
    )
    if location.kind == "gguf":
        from tinyllm.artifacts.gguf import open_gguf

        return open_gguf(location.path)
    return open_directory(location.path, name=location.name, kind=location.kind, revision=location.revision)


def fetch(
    model: str,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: bool = True,
) -> Location:
    """Say what ``model`` means (a directory, else a GGUF file, else a Hub id), and fetch what is the Hub's.

    Nothing is checked yet. Raises `ModelNotFoundError` naming the accepted forms, or as the Hub does.
    """
    expanded = os.path.expanduser(model)
    path = Path(expanded)
    if os.path.isdir(expanded):
        _refuse_revision(revision)
        return Location("directory", path.resolve().name or "model", path)
    is_gguf = path.suffix.lower() == ".gguf"
    if is_gguf and os.path.isfile(expanded):
        _refuse_revision(revision)
        return Location("gguf", path.name, path)
    if is_gguf or os.path.exists(expanded) or len(model) > _MAX_REPO_ID or not _REPO_ID.fullmatch(model):
        raise ModelNotFoundError(
            f"there is no model {model[:100]!r}: give a directory with config.json and safetensors files, "
            "the path of a .gguf file, a Hub id such as org/name, or nothing for the demo model"
        )
    from tinyllm.artifacts.hub import fetch_snapshot

    directory, commit = fetch_snapshot(
        model, revision=revision, token=token, cache_dir=cache_dir, offline=offline, progress=progress
    )
    return Location("hub", model, directory, commit)


def _hub_is_offline() -> bool:
    """Whether the Hub library's own switch is on; it holds for whatever else is fetched, too."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _refuse_revision(revision: str | None) -> None:
    if revision is not None:
        raise ConfigError("revision is for models of the Hub (org/name) only: leave it out")
