"""Where measurements go: tables or JSON to standard output, JSON to a file, progress to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tinyllm.errors import ConfigError

__all__ = ["check_outputs", "draw", "is_output", "note", "save", "show"]


def note(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


def is_output(path: Path | None) -> bool:
    """Whether ``--json`` names standard output."""
    return str(path) == "-"


def check_outputs(json_file: Path | None, report: Path | None = None) -> None:
    """Find out before measuring whether ``--json`` and ``--report`` can be written. Raises `ConfigError`."""
    if json_file is not None and not is_output(json_file):
        if not json_file.parent.is_dir():
            raise ConfigError(f"--json: there is no directory {str(json_file.parent)!r}: make it first")
        if json_file.is_dir():
            raise ConfigError(f"--json: {str(json_file)!r} is a directory: name a file")
    if report is not None:
        try:
            report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--report: {str(report)!r} cannot be a directory: {error.strerror}") from None


def save(report: dict[str, Any], path: Path | None) -> None:
    """Write a report where ``--json`` says, if that is a file. Raises `OSError`."""
    if path is not None and not is_output(path):
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def show(report: dict[str, Any], lines: Iterable[str], path: Path | None) -> None:
    """Save a report, and print it: as JSON if ``--json`` says so, else its lines. Raises `OSError`."""
    save(report, path)
    print(json.dumps(report, indent=2) if is_output(path) else "\n".join(lines))


def draw(results: Iterable[tuple[str, Mapping[str, Any]]], title: str, directory: Path) -> list[Path]:
    """Draw named results, and return the paths of the page and of its tables. Raises `OSError`."""
    from tinyllm.bench.plots.runs import runs_of, sections, words_of, write_report

    runs, words = [], []
    for name, report in results:
        runs += runs_of(report, name)
        words += words_of(report, name)
    return write_report(directory, title, list(sections("Figures", runs, words)))
