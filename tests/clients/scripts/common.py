"""What the scripts share. They run in their client's environment, which has nothing of tinyllm's."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

HI = [{"role": "user", "content": "Say something."}]
LONG = 3000
"""Tokens of an answer that nobody waits for."""

Check = Callable[[], Any]


def arguments() -> tuple[str, str, str]:
    """Return the server's base URL, its key and its model, as a user has them."""
    url, key, model = sys.argv[1:4]
    return url, key, model


def run(checks: Mapping[str, Check]) -> None:
    """Make each call, and print what came of it, or the error, as one line of JSON."""
    results: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            results[name] = check()
        except Exception as error:
            results[name] = {"raised": f"{type(error).__name__}: {error}"[:2000]}
    print(json.dumps(results))


def inner_words(text: str) -> str:
    """Return a piece out of the middle of a text, which can serve as a stop string."""
    middle = len(text) // 2
    return text[middle : middle + 4]
