"""JSON that is written: on one line whatever is in it, and in pieces if there is much of it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.harness import USER, served
from tinyllm.server.json_text import PIECE, compact_json, large_json

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(), inner, max_size=5)
        | st.lists(inner, min_size=1, max_size=2).map(lambda some: some * PIECE)
    ),
    max_leaves=20,
)


@given(values)
def test_in_pieces_it_is_the_same(value: Any) -> None:
    text = large_json(value)
    assert text == compact_json(value)
    assert json.loads(text) == value
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("length", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 1000])
def test_lists_of_any_length(length: int) -> None:
    value = {"a": list(range(length)), "b": [{"c": [0.5] * length}]}
    assert large_json(value) == compact_json(value)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": [1] * 200 + [float("nan")]}])
def test_numbers_that_json_cannot_say(value: Any) -> None:
    with pytest.raises(ValueError, match="JSON"):
        large_json(value)


LARGE: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": USER, "logprobs": True, "top_logprobs": 20, "n": 4}),
    ("/v1/chat/completions", {"messages": USER * 100, "prompt_logprobs": 5}),
    ("/v1/completions", {"prompt": ["a" * 300, "b"], "logprobs": 20, "echo": True}),
    ("/v1/completions", {"prompt": "a" * 300, "prompt_logprobs": 20}),
    ("/tokenize", {"prompt": "a" * 10_000, "return_token_strs": True}),
    ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "a" * 10_000}]}),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("path", "body"), LARGE)
async def test_what_may_be_large_is_not_written_on_the_event_loop(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest: dict[int, int] = {}
    dumps = json.dumps

    def spy(value: Any, **options: Any) -> str:
        text = dumps(value, **options)
        thread = threading.get_ident()
        longest[thread] = max(longest.get(thread, 0), len(text))
        return text

    async with served() as app:
        body = body | {"max_tokens": 300} if path.endswith("completions") else body
        data = json.dumps(body).encode()
        monkeypatch.setattr(json, "dumps", spy)
        answer = await app.post_raw(path, data)
        monkeypatch.undo()
        assert answer.status == 200
        assert int(answer.headers["content-length"]) == len(answer.text.encode()) > 10_000
        assert longest.pop(threading.get_ident(), 0) < 1000
        [elsewhere] = longest.values()
        assert elsewhere < 200_000
