"""The docs say what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import tinyllm.server
from tests.docs_tables import DOCS, TABLES, up_to_date
from tinyllm import errors
from tinyllm.cli.main import COMMANDS
from tinyllm.server.errors import fault_of

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


def test_every_error_code_of_the_server_is_documented_with_its_status() -> None:
    page = (DOCS / "http.md").read_text()
    found: set[tuple[Any, Any]] = {
        (408, "body_timeout"),
        (405, "method_not_allowed"),
        (413, "body_too_large"),
        (400, "bad_request"),
    }
    for path in Path(tinyllm.server.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RefusedError":
                status, code = node.args[:2]
                assert isinstance(status, ast.Constant)
                assert isinstance(code, ast.Constant)
                found.add((status.value, code.value))
    for base in (errors.RequestError, errors.InvalidRequestError, errors.EngineOverloadedError):
        for kind in vars(errors).values():
            if is_error(kind, base):
                fault = fault_of(kind("x"), {})
                found.add((fault.status, fault.code))
    assert len(found) > 25
    rows = re.findall(r"^\| (\d{3}) \| ([^|]*) \|", page, flags=re.MULTILINE)
    told = {(int(status), code) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert found - told == set()


def test_models_page_has_the_measures_that_its_tests_take() -> None:
    pytest.importorskip("transformers")
    from tests.models.test_parity import PROMPTS, TOLERANCE
    from tests.text.strings import STRINGS
    from tests.text.test_chat_template import CONVERSATIONS

    page = (DOCS / "models.md").read_text()
    tolerances = ", ".join(f"{value} in {str(dtype)[6:]}" for dtype, value in TOLERANCE.items())
    assert f"| {len(STRINGS)} strings |" in page
    assert f"| {len(CONVERSATIONS)} conversations |" in page
    assert f"| within {tolerances} |" in page
    assert f"| {len(PROMPTS)} prompts, 64 tokens each |" in page


def is_error(kind: object, base: type[errors.TinyLLMError]) -> bool:
    return isinstance(kind, type) and issubclass(kind, base)
