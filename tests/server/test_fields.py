"""Every field of OpenAI's create calls, and vLLM's: supported, without effect, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.harness import USER, Served, served
from tinyllm.server.protocol.body import SAMPLING_FIELDS
from tinyllm.server.protocol.fields import HARMLESS_FIELDS, REFUSED_FIELDS

pytestmark = pytest.mark.asyncio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

HARMLESS: dict[str, Any] = {
    "user": "me",
    "metadata": {"a": "b"},
    "store": True,
    "service_tier": "auto",
    "safety_identifier": "x",
    "moderation": {"model": "x"},
    "verbosity": "low",
    "prompt_cache_key": "k",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "parallel_tool_calls": True,
    "spaces_between_special_tokens": True,
}

REFUSED: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "audio": {"voice": "x", "format": "wav"},
    "modalities": ["text", "audio"],
    "prediction": {"type": "content", "content": "x"},
    "web_search_options": {},
    "response_format": {"type": "json_object"},
    "structured_outputs": {"json_object": False},
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "guided_choice": ["a"],
    "guided_grammar": "x",
    "guided_decoding_backend": "x",
    "guided_whitespace_pattern": "x",
    "use_beam_search": True,
    "length_penalty": 2.0,
    "best_of": 3,
    "suffix": "x",
    "chat_template": "{{ x }}",
    "documents": [{"text": "x"}],
    "mm_processor_kwargs": {"x": 1},
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "background": True,
    "prompt_embeds": "x",
}

NEUTRAL: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "functions": [],
    "function_call": "none",
    "modalities": ["text"],
    "response_format": {"type": "text"},
    "best_of": 1,
    "suffix": "",
    "documents": [],
    "background": False,
    "use_beam_search": False,
    "length_penalty": 1.0,
}


async def post(app: Served, path: str, **fields: Any) -> Any:
    body = {"messages": USER} if path == CHAT else {"prompt": "a"}
    return await app.post(path, {**body, "max_tokens": 1, **fields})


async def test_the_lists_here_are_complete() -> None:
    assert set(HARMLESS) == HARMLESS_FIELDS
    assert set(REFUSED) == set(REFUSED_FIELDS)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_harmless_fields_are_taken(path: str) -> None:
    async with served(strict_fields=True) as app:
        answer = await post(app, path, **HARMLESS)
        assert answer.status == 200, answer.text
        assert "x-tinyllm-ignored-fields" not in answer.headers
        answer = await post(app, path, **NEUTRAL)
        assert answer.status == 200, answer.text


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_refused_fields_are_named_and_cost_nothing(path: str) -> None:
    async with served() as app:
        for name, value in REFUSED.items():
            answer = await post(app, path, **{name: value})
            assert answer.status == 400, name
            assert answer.error["param"] == name
            assert answer.error["code"] == "unsupported_parameter"
            assert name in answer.error["message"]
        assert app.runner.steps == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_null_is_absent(path: str) -> None:
    names = [*SAMPLING_FIELDS, *HARMLESS_FIELDS, *REFUSED_FIELDS]
    names += [
        "stream",
        "stream_options",
        "model",
        "top_logprobs",
        "echo",
        "request_id",
        "cache_salt",
        "priority",
    ]
    async with served(strict_fields=True) as app:
        answer = await post(app, path, **dict.fromkeys(names, None))
        plain = await post(app, path, max_tokens=None)
    assert answer.json["choices"] == plain.json["choices"]


async def test_null_is_absent_in_objects_too() -> None:
    """Clients write out whole objects of theirs, with what they leave open."""
    async with served(strict_fields=True) as app:
        form = {"type": "text", "json_schema": None, "schema": None}
        options = {"include_usage": None, "mine": None}
        chat = await post(app, CHAT, response_format=form, stream=True, stream_options=options)
        whole = {"input": "hi", "max_output_tokens": 1, "text": {"format": form, "verbosity": None}}
        responses = await app.post("/v1/responses", whole)
        other = await post(app, CHAT, response_format={"type": "json_object", "schema": None})
    assert (chat.status, responses.status) == (200, 200), (chat.text, responses.text)
    assert other.error["param"] == "response_format"


async def test_unknown_fields_are_listed_or_refused() -> None:
    async with served() as app:
        answer = await post(app, CHAT, foo=1, bar={"a": []}, **{"naïve,\n": 1})
        assert answer.status == 200
        assert answer.headers["x-tinyllm-ignored-fields"] == "foo, bar, na\\xefve?\\n"
    async with served(strict_fields=True) as app:
        answer = await post(app, CHAT, foo=1)
        assert (answer.status, answer.error["param"], answer.error["code"]) == (
            400,
            "foo",
            "unknown_parameter",
        )


async def test_unknown_names_inside_objects_too() -> None:
    """Newer clients have options that did not exist yet."""
    inner = {"reasoning": {"mode": "pro", "effort": None}, "text": {"foo": 1, "format": None}}
    options = {"include_usage": True, "bar": 1, "baz": None}
    async with served() as app:
        answer = await app.post("/v1/responses", input="a", max_output_tokens=1, **inner)
        assert answer.status == 200, answer.text
        assert answer.headers["x-tinyllm-ignored-fields"] == "text.foo, reasoning.mode"
        answer = await post(app, CHAT, stream=True, stream_options=options)
        assert answer.headers["x-tinyllm-ignored-fields"] == "stream_options.bar"
    async with served(strict_fields=True) as app:
        answer = await app.post("/v1/responses", input="a", max_output_tokens=1, **inner)
        assert (answer.error["param"], answer.error["code"]) == ("text.foo", "unknown_parameter")


@pytest.mark.parametrize(
    ("path", "start", "own", "others"),
    [
        (CHAT, {"messages": USER}, "max_completion_tokens", ("max_output_tokens",)),
        (TEXT, {"prompt": "a"}, "max_tokens", ("max_completion_tokens", "max_output_tokens")),
        ("/v1/responses", {"input": "a"}, "max_output_tokens", ("max_tokens", "max_completion_tokens")),
    ],
)
async def test_the_length_by_another_endpoints_name_is_refused(
    path: str, start: dict[str, Any], own: str, others: tuple[str, ...]
) -> None:
    async with served() as app:
        for name in others:
            error = (await app.post(path, {**start, name: 2})).error
            assert (error["param"], error["code"]) == (name, "unsupported_parameter")
            assert own in error["message"]
        assert app.runner.steps == []
        usage = (await app.post(path, {**start, own: 2})).json["usage"]
    assert usage.get("completion_tokens", usage.get("output_tokens")) == 2


WRONG: list[tuple[str, Any]] = [
    ("temperature", "1"),
    ("temperature", -0.1),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", 1.5),
    ("top_k", -2),
    ("min_p", 2),
    ("n", 0),
    ("n", 17),
    ("n", "2"),
    ("n", True),
    ("max_tokens", -1),
    ("max_tokens", 1.0),
    ("min_tokens", 5),
    ("presence_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", 5e-324),
    ("repetition_penalty", 1e308),
    ("seed", 1.5),
    ("seed", 2**63),
    ("stop", ""),
    ("stop", ["a"] * 17),
    ("stop", ["a", ""]),
    ("stop", 7),
    ("stop", "x" * 257),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", [258]),
    ("stop_token_ids", ["a"]),
    ("allowed_token_ids", [258]),
    ("bad_words", [""]),
    ("ignore_eos", "yes"),
    ("skip_special_tokens", 1),
    ("stream", "true"),
    ("stream", 1),
    ("stream_options", {"include_usage": True}),
    ("model", 7),
    ("priority", 1.5),
    ("priority", 2**40),
    ("cache_salt", "x" * 600),
    ("request_id", ""),
    ("request_id", "a b"),
    ("request_id", "x" * 129),
    ("truncate_prompt_tokens", 0),
    ("return_token_ids", "yes"),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_wrong_values_name_their_field(path: str) -> None:
    async with served() as app:
        for name, value in WRONG:
            answer = await post(app, path, **{name: value})
            assert answer.status == 400, (name, value)
            assert answer.error["param"] == name, (value, answer.text)
        assert app.runner.steps == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_more_biases_than_any_client_needs_are_refused_unread(path: str) -> None:
    """Each prompt would be checked for all of them, while the event loop waits."""
    async with served() as app:
        answer = await post(app, path, logit_bias={str(i): 0 for i in range(24_000)})
        assert (answer.status, answer.error["param"]) == (400, "logit_bias")
        assert "at most 1024 entries" in answer.error["message"]
        assert app.runner.steps == []


async def test_wrong_values_of_chat() -> None:
    wrong: list[tuple[str, Any]] = [
        ("messages", []),
        ("messages", None),
        ("messages", "hi"),
        ("messages", ["hi"]),
        ("messages", [{"role": "user", "content": "x"}] * 1025),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", 2),
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"name": 7}),
        ("chat_template_kwargs", []),
        ("echo", True),
        ("add_special_tokens", True),
        ("max_completion_tokens", -1),
        ("stream_options", {"include_usage": 1}),
        ("stream_options", {"include_usage": 1}),
    ]
    async with served() as app:
        for name, value in wrong:
            answer = await post(app, CHAT, **{name: value, "stream": name == "stream_options"})
            assert answer.status == 400, (name, value, answer.text)
            assert answer.error["param"] == name, (value, answer.text)


async def test_model_names() -> None:
    async with served(served_model_name=("a/b", "c")) as app:
        for name in ("a/b", "c"):
            assert (await post(app, CHAT, model=name)).json["model"] == name
        assert (await post(app, CHAT)).json["model"] == "a/b"
        answer = await post(app, CHAT, model="gpt-9")
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            404,
            "model_not_found",
            "model",
        )
        assert answer.error["type"] == "not_found_error"
        listed = (await app.get("/v1/models")).json
        assert [entry["id"] for entry in listed["data"]] == ["a/b", "c"]
        one = await app.get("/v1/models/a/b")
        assert one.json == listed["data"][0]
        assert one.json.keys() >= {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
        assert (await app.get("/v1/models/x/y")).error["code"] == "model_not_found"


async def test_a_request_can_be_named_in_its_body() -> None:
    async with served() as app:
        answer = await post(app, CHAT, request_id="mine-1")
    assert answer.json["id"] == "chatcmpl-mine-1"
    assert answer.headers["x-request-id"] == "mine-1"
