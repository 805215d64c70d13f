"""The names users import, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tinyllm


def test_the_public_names() -> None:
    assert set(tinyllm.__all__) >= {
        "AsyncEngine",
        "Engine",
        "EngineConfig",
        "FinishReason",
        "GenerationResult",
        "RequestOutput",
        "SamplingParams",
        "TokenStream",
        "TinyLLMError",
    }
    assert tinyllm.__all__ == sorted(tinyllm.__all__)
    for name in tinyllm.__all__:
        assert getattr(tinyllm, name).__name__ == name
        assert name in dir(tinyllm)


def test_every_error_is_public() -> None:
    from tinyllm import errors

    assert set(errors.__all__) <= set(tinyllm.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        _ = tinyllm.nonsense


def test_importing_does_not_import_torch() -> None:
    code = "import sys, tinyllm; tinyllm.AsyncEngine, tinyllm.Engine; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_type_checkers_see_the_names() -> None:
    source = ast.parse(Path(tinyllm.__file__).read_text())
    seen: set[str] = set()
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tinyllm."):
            names = [alias.name for alias in node.names]
            seen.update(importlib.import_module(node.module).__all__ if names == ["*"] else names)
    assert seen >= set(tinyllm.__all__)


def test_the_library_logs_nowhere_by_itself() -> None:
    import logging

    handlers = logging.getLogger("tinyllm").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)
