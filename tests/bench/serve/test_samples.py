"""A conversation contains all that was said."""

from __future__ import annotations

import pytest

from tinyllm.bench.serve.samples import CHAT, COMPLETIONS, Dialogue
from tinyllm.errors import ConfigError


def test_a_chat_contains_questions_and_answers() -> None:
    dialogue = Dialogue(CHAT)
    first = dialogue.ask("one?")
    assert first == {"messages": [{"role": "user", "content": "one?"}]}
    dialogue.answer("1")
    assert dialogue.ask("two?")["messages"] == [
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two?"},
    ]
    assert len(first["messages"]) == 1, "a request that was sent does not change"


def test_a_text_goes_on() -> None:
    dialogue = Dialogue(COMPLETIONS)
    assert dialogue.ask("a") == {"prompt": "a"}
    dialogue.answer("b")
    assert dialogue.ask("c") == {"prompt": "abc"}


def test_token_ids_are_for_one_completion() -> None:
    dialogue = Dialogue(COMPLETIONS)
    assert dialogue.ask([1, 2]) == {"prompt": [1, 2]}
    dialogue.answer("text")
    with pytest.raises(ConfigError):
        dialogue.ask([3])
    with pytest.raises(ConfigError):
        Dialogue(CHAT).ask([1, 2])


def test_messages_are_for_chat() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert Dialogue(CHAT).ask(messages) == {"messages": messages}
    with pytest.raises(ConfigError):
        Dialogue(COMPLETIONS).ask(messages)
