"""Chat messages as plain data: checked, copied, and in the shape that chat templates expect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tinyllm.errors import InvalidRequestError

__all__ = ["plain_data", "plain_messages", "plain_tools"]

MAX_MESSAGES: Final = 4096
MAX_DEPTH: Final = 32
MAX_SIZE: Final = 8 << 20
"""Characters of all messages, with `ITEM_SIZE` for each other value."""
ITEM_SIZE: Final = 8
MAX_INTEGER_BITS: Final = 14_000
"""Python writes no longer numbers as text."""

_ROLE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Names that a message's reasoning comes under; templates read the first, some the second."""


def plain_messages(messages: object, *, parts: bool, arguments_as_text: bool) -> list[dict[str, Any]]:
    """Return a checked copy of ``messages``, made of dicts, lists, strings, numbers, bools and None.

    Contents that are lists of text parts stay lists if ``parts``, else they become one string. Arguments of
    tool calls, which clients send as JSON text, become objects unless ``arguments_as_text``. An assistant
    that said nothing has the content ``""``. Raises `InvalidRequestError` that names the message.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise _fault("messages must be a list of messages")
    if not messages:
        raise _fault("messages is empty: there must be at least one")
    if len(messages) > MAX_MESSAGES:
        raise _fault(f"there are {len(messages):,} messages; at most {MAX_MESSAGES:,} are allowed")
    plain = [_message(i, message, parts, arguments_as_text) for i, message in enumerate(messages)]
    if _data_size(plain) > MAX_SIZE:
        raise _fault(f"the messages are larger than {MAX_SIZE:,} characters")
    return plain


def plain_tools(tools: object) -> list[Any] | None:
    """Return a checked copy of tool descriptions; None if there are none."""
    if tools is None:
        return None
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise InvalidRequestError("tools must be a list of objects.", param="tools")
    plain = plain_data(list(tools), "tools")
    if _data_size(plain) > MAX_SIZE:
        raise InvalidRequestError(f"tools is larger than {MAX_SIZE:,} characters.", param="tools")
    return plain or None


def plain_data(value: object, param: str, depth: int = 0) -> Any:
    """Copy JSON-like data into exact built-in types, which have no methods of their own to call."""
    if depth > MAX_DEPTH:
        raise InvalidRequestError(f"{param} is nested more than {MAX_DEPTH} deep.", param=param)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        raise InvalidRequestError(f"{param} has a number that is too long.", param=param)
    for scalar in (str, int, float):
        if isinstance(value, scalar):
            return value if type(value) is scalar else scalar(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise InvalidRequestError(f"{param} has an object with a key that is no string.", param=param)
        return {str(key): plain_data(item, param, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item, param, depth + 1) for item in value]
    raise InvalidRequestError(f"{param} has a {type(value).__name__}, which is not JSON.", param=param)


def _data_size(value: object) -> int:
    """Return the characters of all strings in plain data, and a little for everything else."""
    size, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        size += len(item) if isinstance(item, str) else ITEM_SIZE
        if isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
    return size


def _message(index: int, message: object, parts: bool, arguments_as_text: bool) -> dict[str, Any]:
    if hasattr(message, "model_dump"):  # as client libraries return them
        message = message.model_dump()
    if not isinstance(message, Mapping):
        raise _fault(f"message {index} must be an object, not {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise _fault(f"message {index} needs a role, such as system, user, assistant or tool")
    present = {key: value for key, value in message.items() if value is not None or key == "content"}
    if "content" in present:
        present["content"] = None  # keeps its place, for templates that show all there is
    plain: dict[str, Any] = plain_data(present, "messages")
    plain["content"] = _content(index, role, message.get("content"), parts)
    if (reasoning := next((plain[name] for name in _REASONING if name in plain), None)) is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    if "tool_calls" in plain:
        plain["tool_calls"] = _tool_calls(index, plain["tool_calls"], arguments_as_text)
    return plain


def _content(index: int, role: str, content: object, parts: bool) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return str(content)
    if content is None:
        if role != "assistant":
            raise _fault(f"message {index} ({role}) has no content")
        return ""
    if not isinstance(content, (list, tuple)):
        raise _fault(f"the content of message {index} must be text or a list of text parts")
    texts = [_part(index, part) for part in content]
    return [{"type": "text", "text": text} for text in texts] if parts else "\n".join(texts)


def _part(index: int, part: object) -> str:
    if isinstance(part, str):
        return str(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind != "text":
        raise _fault(f"message {index} has a content part of type {str(kind)[:40]!r}; only text is supported")
    text = part.get("text")
    if not isinstance(text, str):
        raise _fault(f"message {index} has a text part without text")
    return str(text)


def _tool_calls(index: int, calls: object, arguments_as_text: bool) -> list[Any]:
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise _fault(f"tool_calls of message {index} must be a list of objects")
    if not arguments_as_text:
        for call in calls:
            function = call.get("function", call)
            if isinstance(function, dict) and isinstance(function.get("arguments"), str):
                function["arguments"] = _parsed(function["arguments"])
    return calls


def _parsed(arguments: str) -> object:
    """Return the object that JSON text describes; text that describes none stays as it is."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return plain_data(value, "messages") if isinstance(value, dict) else arguments


def _fault(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{message}.", param="messages")
