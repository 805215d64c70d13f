"""Where measurements go: tables or JSON to standard output, JSON to a file, progress to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw", "is_output", "note", "save", "show"]


def note(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)


def is_output(path: Path | None) -> bool:
    """Whether ``--json`` names standard output."""
    return str(path) == "-"


def save(report: dict[str, Any], path: Path | None) -> None:
    """Write a report where ``--json`` says, if that is a file. Raises `OSError`."""
    if path is not None and not is_output(path):
        path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def show(report: dict[str, Any], lines: Iterable[str], path: Path | None) -> None:
    """Save a report, and print it: as JSON if ``--json`` says so, else its lines. Raises `OSError`."""
    save(report, path)
    print(json.dumps(report, indent=2) if is_output(path) else "\n".join(lines))


def draw(report: Mapping[str, Any], name: str, directory: Path) -> None:
    """Write what ``bench report`` would of one result. Raises `OSError`."""
    from tinyllm.bench.plots.runs import runs_of, sections, words_of, write_report

    parts = list(sections("Figures", runs_of(report, name), words_of(report, name)))
    page = write_report(directory, f"Load on {name}", parts)[0]
    note(f"wrote {page}")
