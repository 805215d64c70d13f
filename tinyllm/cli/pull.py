"""``tinyllm pull``: fetch a model of the Hub, or the demo model, ahead of time."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyllm.artifacts.model import ModelArtifacts

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command to ``argparse``'s subparsers."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "pull",
        help="fetch a model ahead of time",
        description="Fetch and check a model, and say where it is and how large it is. "
        "For a private model set HF_TOKEN.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="Hub id, such as org/name (default: the demo model)"
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub model")
    parser.add_argument("--cache-dir", type=Path, metavar="PATH", help="where fetched models are kept")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bars")


def run(args: argparse.Namespace) -> int:
    """Fetch, check, and print name, revision, size and place."""
    artifacts, directory = _fetch(args)
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    print(f"{artifacts.name} ({artifacts.revision}): {size / 1e6:,.0f} MB in {directory}")
    return 0


def _fetch(args: argparse.Namespace) -> tuple[ModelArtifacts, Path]:
    from tinyllm.artifacts.demo import demo_directory
    from tinyllm.artifacts.directory import open_directory
    from tinyllm.artifacts.resolve import fetch, open_model
    from tinyllm.errors import ConfigError

    options = {"revision": args.revision, "cache_dir": args.cache_dir, "progress": not args.no_progress}
    if args.model is None:
        return open_model(None, **options), demo_directory(args.cache_dir)
    location = fetch(args.model, **options)
    if location.kind != "hub":
        raise ConfigError(f"{location.name} is on this machine already; pull is for models of the Hub")
    artifacts = open_directory(location.path, name=location.name, kind="hub", revision=location.revision)
    return artifacts, location.path
