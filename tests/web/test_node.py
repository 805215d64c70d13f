"""The page's pure parts under Node's test runner, and its size."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WEB = HERE.parent.parent / "web"
MOST_BYTES = 150_000


def test_under_node() -> None:
    node = shutil.which("node")
    if node is None and not os.environ.get("CI"):
        pytest.skip("node is not installed; the page's own tests need version 20 or later")
    assert node is not None
    files = sorted(str(path) for path in HERE.glob("*.test.js"))
    result = subprocess.run(
        [node, "--test", *files], capture_output=True, text=True, timeout=240, check=False
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def test_the_page_is_small() -> None:
    size = sum(path.stat().st_size for path in WEB.rglob("*") if path.is_file())
    assert size <= MOST_BYTES


def test_the_page_has_no_way_around_its_policy() -> None:
    """Nothing inline, nothing from elsewhere, and no function that turns text into markup or code."""
    forbidden = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "DOMParser",
    )
    for path in WEB.rglob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert not [word for word in forbidden if word in text], path.name
    page = (WEB / "index.html").read_text(encoding="utf-8")
    assert not [word for word in (" style=", " onclick", "<style", "http://", "https://") if word in page]
