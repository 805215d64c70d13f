"""`Sample`: one conversation to hold with a server, and `Dialogue`, the state of one being held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinyllm.errors import ConfigError

__all__ = ["CHAT", "COMPLETIONS", "Dialogue", "Message", "Prompt", "Sample", "Turn"]

COMPLETIONS: Final = "openai"
CHAT: Final = "openai-chat"

Message = dict[str, Any]
Prompt = str | list[int] | list[Message]
"""A text, token ids (for completions), or messages (for chat)."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is asked, and how many tokens the answer may have."""

    prompt: Prompt
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation: mostly of one turn. Each turn is a request, sent once the one before it is answered."""

    turns: tuple[Turn, ...]
    label: str = ""
    """The kind of request, such as ``short`` or ``long``."""
    timestamp: float | None = None
    """When it came, in seconds, where a trace says so."""


class Dialogue:
    """A conversation so far: makes each turn's part of the request, with all that was said before."""

    def __init__(self, backend: str) -> None:
        self._chat = backend == CHAT
        self._said: Any = [] if self._chat else ""

    def ask(self, prompt: Prompt) -> dict[str, Any]:
        """Return ``messages`` or ``prompt`` of the next request. Raises `ConfigError` if it does not fit."""
        if not self._chat:
            return {"prompt": self._text(prompt)}
        self._said = self._said + _messages(prompt)
        return {"messages": self._said}

    def answer(self, text: str) -> None:
        """Add what the server said."""
        if self._chat:
            self._said = [*self._said, {"role": "assistant", "content": text}]
        elif isinstance(self._said, str):
            self._said += text

    def _text(self, prompt: Prompt) -> Prompt:
        if isinstance(prompt, str) and isinstance(self._said, str):
            self._said += prompt
            return str(self._said)
        if prompt and isinstance(prompt[0], dict):
            raise ConfigError("messages are for chat: use --backend openai-chat")
        if self._said:
            raise ConfigError("a conversation of several turns needs prompts that are text, not token ids")
        self._said = prompt
        return prompt


def _messages(prompt: Prompt) -> Sequence[Message]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if prompt and not isinstance(prompt[0], dict):
        raise ConfigError("token ids are for completions: use --backend openai")
    return [message for message in prompt if isinstance(message, dict)]
