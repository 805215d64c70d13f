"""Hostile bodies: each is refused with its status, says nothing of the inside, and costs no step."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.server.harness import USER, served
from tests.server.test_json_body import BAD

pytestmark = pytest.mark.asyncio

PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [97]},
    "/v1/chat/completions/render": {"messages": USER},
}

NOT_OBJECTS: list[Any] = [[], [1], "x", 7, 1.5, True, None]

WRONG_TYPES: list[Any] = [
    {"$ne": None},
    [[[]]],
    -1,
    10**18,
    1e308,
    True,
    "'; DROP TABLE models; --",
    "{{ 7*7 }}",
    "../../etc/passwd",
    "\u0000",
    "\u202e",
]

INSIDE = re.compile(
    r"/work|/opt|/usr|\.py\b|Traceback|tinyllm\.|pydantic|quart|object at 0x|<class", re.IGNORECASE
)


GENERATES = ("/v1/chat/completions", "/v1/completions")


def as_json(plain: dict[str, Any], name: str, value: Any) -> bytes:
    return json.dumps({**plain, name: value}).encode()


def corpus() -> list[tuple[str, str, bytes]]:
    cases = [(f"{name} to {path}", path, body) for path in PATHS for name, body in BAD.items()]
    for path, plain in PATHS.items():
        cases += [(f"{value!r} to {path}", path, json.dumps(value).encode()) for value in NOT_OBJECTS]
        [field] = plain
        for value in WRONG_TYPES:
            if isinstance(value, str) and field in ("prompt", "input"):
                continue  # that is text like any other
            cases.append((f"{field}={value!r} to {path}", path, json.dumps({field: value}).encode()))
        cases.append((f"nothing to {path}", path, b"{}"))
        for name in ("temperature", "stream", "n", "model", "chat_template_kwargs", "stream_options"):
            for value in ({"a": 1}, [[]], "x" * 1000):
                fits = (name, type(value)) in (("model", str), ("chat_template_kwargs", dict))
                if path in GENERATES and not fits:
                    cases.append((f"{name}={str(value)[:9]} to {path}", path, as_json(plain, name, value)))
    return cases


CASES = corpus()


async def test_the_corpus() -> None:
    assert len(CASES) >= 300
    async with served(strict_fields=True) as app:
        for name, path, body in CASES:
            answer = await app.post_raw(path, body)
            assert answer.status == 400, (name, answer.text)
            error = answer.error
            assert error["type"] == "invalid_request_error", name
            assert not INSIDE.search(answer.text), answer.text
            assert len(answer.text) < 1000, name
        assert app.runner.steps == []
        assert app.engine.num_requests == 0
        assert (await app.post("/v1/completions", prompt="a")).status == 200


async def test_long_names_and_values_come_back_short() -> None:
    async with served() as app:
        for body in (
            {"messages": USER, "x" * 10_000: 1},
            {"messages": USER, "model": "m" * 10_000},
            {"messages": USER, "temperature": "t" * 10_000},
            {"messages": USER, **{f"field{i}": 1 for i in range(1000)}},
        ):
            answer = await app.post("/v1/chat/completions", body)
            assert len(answer.text) < 5000
            assert sum(map(len, answer.headers.values())) < 4000


async def test_text_of_any_kind_is_only_text() -> None:
    texts = [
        "\u0000",
        "\u202e\u2028\u0085",
        "😀" * 100,
        "<|im_end|>",
        "</script>",
        "\ufffd",
        "data: [DONE]\n\n",
    ]
    async with served() as app:
        for text in texts:
            answer = await app.post("/v1/completions", prompt=text, echo=True, max_tokens=1)
            assert answer.json["choices"][0]["text"].startswith(text)
            events = (await app.stream("/v1/completions", prompt=text, echo=True, max_tokens=1)).events
            assert events[0]["choices"][0]["text"] == text
