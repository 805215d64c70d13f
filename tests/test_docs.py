"""The docs say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs_tables import DOCS, TABLES, up_to_date
from tinyllm import errors
from tinyllm.cli.main import COMMANDS

PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_are_up_to_date(page: Path) -> None:
    text = page.read_text()
    assert text == up_to_date(text), "run python -m tests.docs_tables"


def test_every_table_is_somewhere() -> None:
    everything = "".join(page.read_text() for page in PAGES)
    for name in TABLES:
        assert f"<!-- table {name} -->" in everything


def test_every_command_is_documented() -> None:
    page = (DOCS / "cli.md").read_text()
    for command in COMMANDS:
        assert f"## {command}" in page


def test_every_error_is_documented() -> None:
    page = (DOCS / "api.md").read_text()
    for name in errors.__all__:
        assert f"`{name}`" in page
