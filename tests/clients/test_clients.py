"""Clients as they come from the package index, each with at least ten kinds of call.

Their scripts make the calls (in ``scripts/``); here is what must come of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import KEY, MODEL, Client, Results, serve
from tests.server.process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.slow]

CLIENTS = {
    "openai-newest": ("newest", "openai_client"),
    "openai-1": ("openai-1", "openai_client"),
    "langchain": ("newest", "langchain_client"),
    "litellm": ("newest", "litellm_client"),
    "llm": ("newest", "llm_client"),
    "guidellm": ("guidellm", "guidellm_client"),
}


@pytest.fixture(scope="module", params=CLIENTS)
def name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def results(name: str, client: Client, server: ServerProcess) -> Results:
    cancelled = server.metric("requests_cancelled_total")
    found = client(*CLIENTS[name])
    server.wait_idle()
    found["cancelled"] = server.metric("requests_cancelled_total") - cancelled
    return found


@pytest.fixture(scope="module")
def text(server: ServerProcess) -> str:
    """What the model says to the scripts' message, asked without any client."""
    fields = {"messages": [{"role": "user", "content": "Say something."}], "temperature": 0, "max_tokens": 12}
    key = {"Authorization": f"Bearer {KEY}"}
    choice = server.post("/v1/chat/completions", fields, **key).json["choices"][0]
    said: str = choice["message"]["content"]
    return said


def only(name: str, *names: str) -> None:
    if name not in names:
        pytest.skip("this client has no such call")


OPENAI = ("openai-newest", "openai-1")
LIBRARIES = (*OPENAI, "langchain", "litellm")


def test_no_call_fails_in_the_client(results: Results) -> None:
    raised = {call: found for call, found in results.items() if isinstance(found, dict) and "raised" in found}
    assert raised == {}
    assert len(results) >= 12


def test_plain(name: str, results: Results, text: str) -> None:
    found = results["plain"]
    assert found["text"] == text
    assert found["usage"][:2] == [33, 12]
    if name in LIBRARIES:
        assert found["finish"] == "length"
        assert found["usage"][2] == 45
    if name in OPENAI:
        assert (found["role"], found["object"], found["model"]) == ("assistant", "chat.completion", MODEL)
        assert found["id"] == f"chatcmpl-{found['request_id']}"
        assert found["fingerprint"].startswith("tinyllm-")
    if name == "langchain":
        assert found["fingerprint"].startswith("tinyllm-")


def test_stream(name: str, results: Results, text: str) -> None:
    found = results["stream"]
    assert found["text"] == text
    if name in (*OPENAI, "litellm"):
        assert (found["finishes"], found["ids"]) == (["length"], 1)
    if name in OPENAI:
        assert found["usages"] == 0
    if name == "langchain":
        assert found["finish"] == "length"


def test_usage(name: str, results: Results, text: str) -> None:
    found = results["usage"]
    if name == "llm":
        assert found["line"].startswith("Token usage: 33 input, 12 output")
    elif name == "litellm":
        assert found == {"usage": [[33, 12, 45]], "rebuilt": text}
    elif name == "guidellm":
        assert found == {"usage": [33, 12]}
    else:
        assert found["usage"] == [33, 12, 45]
    if name in OPENAI:
        assert (found["choices_of_last"], found["others"]) == (0, 0)


def test_stop(name: str, results: Results, text: str) -> None:
    found = results["stop"]
    assert 0 < len(found["expected"]) < len(text)
    assert found["text"] == found["streamed"] == found["expected"]
    if name in OPENAI:
        assert found["finish"] == "stop"


def test_seed(results: Results) -> None:
    first, second = results["seed"]["same"]
    assert first == second != results["seed"]["other"]


def test_n(name: str, results: Results) -> None:
    only(name, *LIBRARIES, "guidellm")
    if name == "guidellm":  # it keeps one text, and counts all
        assert results["several"]["tokens"] == [36, 36]
        return
    texts = results["several"]["texts"]
    assert len(set(texts)) == len(texts) == (3 if name in OPENAI else 2)
    if name in OPENAI:
        assert (results["several"]["indices"], results["several"]["tokens"]) == ([0, 1, 2], 36)


def test_logprobs(name: str, results: Results, text: str) -> None:
    found = results["logprobs"]
    if name in ("llm", "guidellm"):  # they take them, and show none
        assert found["text"] == found["plain"] != ""
        return
    assert (found["count"], found["streamed_alike"]) == (12, True)
    assert found["tops"] == [3 if name in OPENAI else 2]
    if name in OPENAI:
        assert found["best_first"]
        assert found["bytes"] == text
    if name == "litellm":
        assert found["finishes"] == ["length"]


def test_completions(name: str, results: Results) -> None:
    only(name, *LIBRARIES, "guidellm")
    found = results["completions"]
    if name not in OPENAI:
        assert found["text"] == found["streamed"] != ""
        return
    one, two = found["texts"]
    assert one == "One" + found["streamed"]
    assert two.startswith("Two")
    assert (found["first"], found["lengths"]) == ([None, 0], 1)


def test_responses(name: str, results: Results, text: str) -> None:
    only(name, *OPENAI, "llm", "guidellm")
    found = results["responses"]
    assert found["text"] == found["streamed"]
    assert text.startswith(found["text"])
    if name in OPENAI:
        assert (found["status"], found["reason"], found["last"]) == (
            "incomplete",
            "max_output_tokens",
            "response.incomplete",
        )
        assert found["usage"] == 6
    if name == "guidellm":
        assert found["usage"] == [33, 12]


ERRORS: dict[str, Any] = {
    "value": ["BadRequestError", 400, "invalid_value", "temperature"],
    "tools": ["BadRequestError", 400, "unsupported_parameter", "tools"],
    "length": ["BadRequestError", 400, "context_length_exceeded", "messages"],
    "model": ["NotFoundError", 404, "model_not_found", "model"],
    "key": ["AuthenticationError", 401, "invalid_api_key", None],
    "stream": ["BadRequestError", 400, "invalid_value", "top_p"],
}


def test_errors(name: str, results: Results) -> None:
    found = results["errors"]
    match name:
        case "openai-newest" | "openai-1":
            assert found == ERRORS
        case "langchain":
            assert {call: kind[0] for call, kind in found.items()} == dict.fromkeys(found, True)
            assert [call for call, kind in found.items() if kind[1]] == ["length"]
            assert {kind[2] for kind in found.values()} == {400}
        case "litellm":
            assert found == {
                "value": ["BadRequestError", 400],
                "length": ["ContextWindowExceededError", 400],
                "key": ["AuthenticationError", 401],
                "tools": ["BadRequestError", 400],
                "model": ["NotFoundError", 404],
            }
        case "llm":
            assert {code for code, _ in found.values()} == {1}
            assert "maximum context length" in found["length"][1]
            assert "response_format" in found["json"][1]
            assert "API key is not known" in found["key"][1]
        case "guidellm":
            assert found == {call: status for call, (_, status, *_) in ERRORS.items()}


def test_cancel(name: str, results: Results) -> None:
    """What a client gives up on ends in the server; `results` has waited for that."""
    found, both = results["cancel"], name in (*OPENAI, "guidellm")
    assert found["seen"] == (1 if name in ("llm", "guidellm") else 3)
    assert results["cancelled"] == (2 if both else 1)
    if both:
        assert found["plain"] == "gave up"


def test_models(name: str, results: Results) -> None:
    found = results["models"]
    if name == "llm":
        assert [line.split()[-1] for line in found["listed"]] == ["my-chat", "my-text", "my-responses"]
        return
    assert found["listed"] == [MODEL]
    if name == "guidellm":
        assert found["default"] == MODEL
    if name in OPENAI:
        assert found["one"] == [MODEL, "model", "tinyllm", True]


def test_the_official_helper_accumulates_streams(name: str, results: Results) -> None:
    only(name, *OPENAI)
    found = results["helper"]
    assert found["texts"] == [results["stop"]["expected"]] * 2
    assert (found["roles"], found["finishes"], found["done"]) == (["assistant"] * 2, ["stop"] * 2, 2)


def test_extra_fields(name: str, results: Results, text: str) -> None:
    only(name, *OPENAI)
    assert results["extras"] == {"text": text, "ignored": "made_up"}


def test_many_at_once(name: str, results: Results, text: str) -> None:
    only(name, "langchain", "litellm", "guidellm")
    assert results["asynchronous"]["texts"] == [text] * 4


def test_parts_and_a_system_message(name: str, results: Results) -> None:
    only(name, "langchain")
    assert results["parts"]["finish"] == "length"


def test_the_name_for_servers_like_vllm(name: str, results: Results, text: str) -> None:
    only(name, "litellm")
    assert results["hosted_vllm"] == {"text": text, "streamed": text}


def test_a_conversation_goes_on(name: str, results: Results) -> None:
    only(name, "llm", "guidellm")
    found = results["conversation"]
    assert found["second"] > found["first"] + 12


def test_biases(name: str, results: Results) -> None:
    only(name, "llm")
    assert results["bias"]["text"] == "t" * 12


def test_d49_comments_between_events_are_passed_over(client: Client, tiny_llama: Path, text: str) -> None:
    """A server that says it is alive every millisecond, so before and between all events."""
    with serve(tiny_llama, sse_ping_interval=0.001) as pinging:
        raw = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": 12, "stream": True}
        assert b": ping\n\n" in pinging.post("/v1/chat/completions", raw, Authorization=f"Bearer {KEY}").body
        found = client("newest", "openai_client", pinging)
    assert [call for call, result in found.items() if "raised" in result] == []
    assert found["stream"]["text"] == found["plain"]["text"] == text
    assert found["usage"]["usage"] == [33, 12, 45]
