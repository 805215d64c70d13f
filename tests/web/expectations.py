"""Playwright's `expect`. Where there is no Playwright, the files that import this are skipped, but in CI."""

from __future__ import annotations

import os
from typing import Any

import pytest

__all__ = ["expect"]

if os.environ.get("CI"):
    from playwright.sync_api import expect
else:
    _api = pytest.importorskip("playwright.sync_api", reason="needs pip install -e '.[browser]'")
    expect: Any = _api.expect  # type: ignore[no-redef]
