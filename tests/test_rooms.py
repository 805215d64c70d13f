"""The rooms of docs/architecture.md: a file imports only from rooms above its own."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinyllm

PACKAGE = Path(tinyllm.__file__).parent

# Top to bottom. A room may import from itself and from every room above.
ROOMS = (
    ("errors", "faults", "params", "outputs", "config", "metrics"),
    ("artifacts",),
    ("native",),
    ("text",),
    ("attention",),
    ("models",),
    ("core",),
    ("runner",),
    ("engine",),
    ("bench",),
    ("server",),
    ("cli", "app", "__main__"),
)
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}

# Room -> what it must never import, not even inside a function.
MUST_NOT_KNOW = {
    "errors": {"torch", "quart"},
    "faults": {"torch", "quart"},
    "params": {"quart"},
    "outputs": {"torch", "quart"},
    "config": {"torch", "quart"},
    "metrics": {"torch", "quart"},
    "text": {"torch", "transformers"},
    "attention": {"tinyllm.core"},
    "models": {"tinyllm.core", "tinyllm.text"},
    "core": {"torch", "anyio", "asyncio", "tinyllm.text", "tinyllm.attention", "tinyllm.models"},
    "runner": {"asyncio", "anyio", "tinyllm.text"},
    "engine": {"quart"},
    "bench": {"quart"},
    "server": {"torch"},
}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute names a file imports, those only for type checkers left out."""
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: imports are absolute"
            yield node.module or ""
            if node.module == "tinyllm":
                yield from (f"tinyllm.{alias.name}" for alias in node.names)


def knows(module: str, forbidden: str) -> bool:
    return module == forbidden or module.startswith(forbidden + ".")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_rooms_above(path: Path) -> None:
    own = room_of(path)
    for module in imports(path):
        parts = module.split(".")
        if parts[0] == "tinyllm" and len(parts) > 1 and parts[1] in RANK:
            assert RANK[parts[1]] <= RANK[own], f"{own} imports {module}, which lies below it"
        for forbidden in MUST_NOT_KNOW.get(own, set()):
            assert not knows(module, forbidden), f"{own} must not know {forbidden}"


def test_every_file_is_in_a_room() -> None:
    assert {room_of(path) for path in FILES} <= set(RANK)


def test_importing_tinyllm_does_not_import_torch() -> None:
    code = "import sys, tinyllm; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_can_be_imported() -> None:
    for name in tinyllm.__all__:
        assert getattr(tinyllm, name) is not None
