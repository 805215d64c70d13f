"""The README's test command installs no browser: without one, files are skipped and none is an error."""

from __future__ import annotations

import os
import subprocess
import sys

WITHOUT_PLAYWRIGHT = """
import sys
import pytest
sys.modules["playwright"] = None
sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests/web"]))
"""


def test_tests_are_collected_without_a_browser() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PLAYWRIGHT],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "error" not in done.stdout.lower()
    assert "test_node.py" in done.stdout, "tests that need no browser are still there"
