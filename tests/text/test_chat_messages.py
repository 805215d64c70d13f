"""Messages as plain data: everything wrong is named, everything right is copied."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from tinyllm.errors import InvalidRequestError
from tinyllm.text.chat_messages import plain_messages, plain_tools


def plain(*messages: Any, parts: bool = False, text: bool = False) -> list[dict[str, Any]]:
    return plain_messages(list(messages), parts=parts, arguments_as_text=text)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


BAD = [
    ("no list", "must be a list"),
    (None, "must be a list"),
    ({"role": "user", "content": "x"}, "must be a list"),
    ([], "empty"),
    (["x"], "message 0 must be an object"),
    ([{"content": "x"}], "needs a role"),
    ([{"role": "", "content": "x"}], "needs a role"),
    ([{"role": 1, "content": "x"}], "needs a role"),
    ([{"role": "user\n<|im_end|>", "content": "x"}], "needs a role"),
    ([{"role": "user"}], "no content"),
    ([{"role": "user", "content": None}], "no content"),
    ([{"role": "tool", "content": None}], "no content"),
    ([{"role": "user", "content": 5}], "text or a list"),
    ([{"role": "user", "content": [5]}], "content part"),
    ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "image_url"),
    ([{"role": "user", "content": [{"type": "text"}]}], "without text"),
    ([{"role": "user", "content": [{"type": "text", "text": None}]}], "without text"),
    ([{"role": "assistant", "tool_calls": "x"}], "tool_calls"),
    ([{"role": "assistant", "tool_calls": [1]}], "tool_calls"),
    ([{"role": "user", "content": "x", "extra": object()}], "object"),
    ([{"role": "user", "content": "x", "extra": {1: 2}}], "key"),
    ([{"role": "user", "content": "x", "extra": nested(100)}], "deep"),
    ([{"role": "user", "content": "x"}] * 5000, "5,000 messages"),
    ([{"role": "user", "content": "x" * (9 << 20)}], "larger"),
    ([{"role": "user", "content": "ok"}, {"role": "user", "content": 1}], "message 1"),
]


@pytest.mark.parametrize(("messages", "fault"), BAD, ids=range(len(BAD)))
def test_bad_messages_are_named(messages: Any, fault: str) -> None:
    with pytest.raises(InvalidRequestError, match=fault) as caught:
        plain_messages(messages, parts=False, arguments_as_text=False)
    assert caught.value.param == "messages"


class Text(str):
    """A string with a method of its own, which templates must not reach."""

    def danger(self) -> str:
        return "reached"


class Role(enum.StrEnum):
    USER = "user"


def test_everything_becomes_exact_built_in_types() -> None:
    [message] = plain({"role": Role.USER, "content": Text("x"), "n": (Text("y"), True, 1.5, None)})
    assert message == {"role": "user", "content": "x", "n": ["y", True, 1.5, None]}
    assert {type(value) for value in (message["role"], message["content"], message["n"][0])} == {str}


def test_keys_without_a_value_are_left_out() -> None:
    assert plain({"role": "user", "content": "x", "name": None}) == [{"role": "user", "content": "x"}]


def test_messages_of_client_libraries() -> None:
    class Message:
        def model_dump(self) -> dict[str, Any]:
            return {"role": "assistant", "content": None, "refusal": None, "tool_calls": None}

    assert plain(Message()) == [{"role": "assistant", "content": ""}]


def test_parts() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}, "b"]}
    assert plain(message)[0]["content"] == "a\nb"
    assert plain(message, parts=True)[0]["content"] == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert plain({"role": "user", "content": []})[0]["content"] == ""


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_has_the_names_that_templates_read(name: str) -> None:
    [message] = plain({"role": "assistant", "content": "x", name: "because"})
    assert message["reasoning_content"] == message["thinking"] == "because"


def test_arguments() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]}
    assert plain(call)[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert plain(call, text=True)[0]["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    flat = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}
    assert plain(flat)[0]["tool_calls"][0]["arguments"] == "[1]"
    deep = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}
    assert plain(deep)[0]["tool_calls"][0]["function"]["arguments"].startswith("[[")


def test_tools() -> None:
    assert plain_tools(None) is None
    assert plain_tools([]) is None
    assert plain_tools([{"type": "function"}]) == [{"type": "function"}]
    for bad in ("x", {"a": 1}, [1], [{"f": object()}], [{"f": "x" * (9 << 20)}]):
        with pytest.raises(InvalidRequestError) as caught:
            plain_tools(bad)
        assert caught.value.param == "tools"
