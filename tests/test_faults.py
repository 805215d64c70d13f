"""What is wrong with a value is said in plain words, about what was given and where."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tinyllm import EngineConfig, SamplingParams
from tinyllm.errors import ConfigError, InvalidRequestError
from tinyllm.faults import first_fault
from tinyllm.server.protocol.body import parse_body
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.protocol.completions import CompletionRequest
from tinyllm.server.protocol.responses import ResponsesRequest
from tinyllm.server.protocol.tokenize import DetokenizeRequest

WORDS = [
    ({"temperature": -1}, "temperature: must be greater than or equal to 0 (got -1)"),
    ({"temperature": True}, "temperature: must be a number (got true)"),
    ({"temperature": float("nan")}, "temperature: must be a finite number (got NaN)"),
    ({"n": 1.5}, "n: must be an integer (got 1.5)"),
    ({"n": 17}, "n: must be less than or equal to 16 (got 17)"),
    ({"ignore_eos": "yes"}, 'ignore_eos: must be a boolean (got "yes")'),
    ({"stop": ["a", "é", 5]}, "stop.2: must be a string (got 5)"),
    ({"stop": [""]}, 'stop.0: must have at least 1 character (got "")'),
    ({"stop": {}}, "stop: must be a list (got {})"),
    ({"logit_bias": [1]}, "logit_bias: must be an object (got [1])"),
    ({"logit_bias": {"x": 1}}, 'logit_bias.x: must be an integer (got "x")'),
    ({"logit_bias": {"7": "x"}}, 'logit_bias.7: must be a number (got "x")'),
    ({"top_q": 1}, "unknown field 'top_q'"),
]


@pytest.mark.parametrize(("values", "message"), WORDS, ids=[message for _, message in WORDS])
def test_options_of_sampling(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**values)
    assert str(caught.value) == message
    assert caught.value.param == next(iter(values))


BODIES: list[tuple[type[Any], dict[str, Any], str]] = [
    (CompletionRequest, {}, "prompt: is required"),
    (CompletionRequest, {"prompt": 5}, "prompt: must be a string or a list (got 5)"),
    (ResponsesRequest, {"input": True}, "input: must be a string or a list (got true)"),
    (ResponsesRequest, {"input": [{}, 5]}, "input.1: must be an object (got 5)"),
    (ResponsesRequest, {"input": "a", "truncation": "auto"}, "truncation: must be 'disabled' (got \"auto\")"),
    (ChatRequest, {"messages": "hi"}, 'messages: must be a list (got "hi")'),
    (ChatRequest, {"messages": []}, "messages: must have at least 1 item (got [])"),
    (ChatRequest, {"messages": [5]}, "messages.0: must be an object (got 5)"),
    (ChatRequest, {"messages": [{}], "stream_options": []}, "stream_options: must be an object (got [])"),
    (ResponsesRequest, {"input": "a", "reasoning": "low"}, 'reasoning: must be an object (got "low")'),
    (DetokenizeRequest, {"tokens": [1, -1]}, "tokens.1: must be greater than or equal to 0 (got -1)"),
]


@pytest.mark.parametrize(("model", "body", "message"), BODIES, ids=[entry[2] for entry in BODIES])
def test_requests(model: type[Any], body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(body, model)
    assert str(caught.value) == message


def test_options_of_the_engine() -> None:
    with pytest.raises(ConfigError, match=r"block_size: must be greater than or equal to 1 \(got 0\)"):
        EngineConfig(block_size=0)


class Anything(BaseModel):
    """A field of each kind that has words of its own."""

    model_config = ConfigDict(strict=True, extra="forbid")

    flag: bool = False
    text: Annotated[str, Field(min_length=2, max_length=3)] = "ab"
    one: Literal["a", "b"] = "a"
    many: Sequence[str] = ()
    secret: Annotated[str, Field(min_length=16)] = "x" * 16


def fault_of(**values: Any) -> tuple[str, str]:
    with pytest.raises(ValidationError) as caught:
        Anything(**values)
    return first_fault(caught.value, secret={"secret"})


@pytest.mark.parametrize("value", [5, "x" * 1000, ["x"] * 1000, {1: 2}, object(), {"a": {3}}, b"a", 1e400])
@pytest.mark.parametrize("name", ["flag", "text", "one", "many", "unknown" * 40])
def test_no_word_of_pydantic_and_no_long_quote(name: str, value: object) -> None:
    if name == "many" and value == ["x"] * 1000:
        return  # this one is right
    field, message = fault_of(**{name: value})
    assert field == name
    assert len(message) < 250
    assert not any(word in message for word in ("Input", "String should", "List should", "valid"))


def test_a_secret_is_not_quoted() -> None:
    assert fault_of(secret="sk-12345") == ("secret", "secret: must have at least 16 characters")


MANY_NAMES = {f"a{i}": 1 for i in range(24_000)}

MANY: list[tuple[type[Any], dict[str, Any], str]] = [
    (ChatRequest, {"messages": ["a"] * 49_000}, "messages.0: must be an object"),
    (ResponsesRequest, {"input": ["a"] * 49_000}, "input.0: must be an object"),
    (DetokenizeRequest, {"tokens": [*range(20_000), *["a"] * 29_000]}, "tokens.20000: must be an integer"),
    (SamplingParams, {"stop": [1.5] * 49_000}, "stop takes at most 16 entries, not 49000"),
    (SamplingParams, {"bad_words": [1.5] * 1024}, "bad_words.0: must be a string"),
    (SamplingParams, {"allowed_token_ids": [1.5] * 49_000}, "allowed_token_ids.0: must be an integer"),
    (SamplingParams, {"logit_bias": MANY_NAMES}, "logit_bias takes at most 1024 entries, not 24000"),
    (SamplingParams, {"logit_bias": dict.fromkeys(range(1024), "x")}, "logit_bias.0: must be a number"),
]


@pytest.mark.parametrize(("kind", "values", "message"), MANY, ids=[message for _, _, message in MANY])
def test_tens_of_thousands_of_faults_take_no_longer(
    kind: type[Any], values: dict[str, Any], message: str
) -> None:
    """The event loop waits for it. Counted in processor time, which other processes do not take away."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        with pytest.raises(InvalidRequestError) as caught:
            SamplingParams(**values) if kind is SamplingParams else parse_body(values, kind)
        times.append(time.thread_time() - started)
        assert str(caught.value).startswith(message)
    assert min(times) < 0.06
