from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import EOS, says
from tests.server.harness import USER, Served, events_of, idle, served

pytestmark = pytest.mark.asyncio

CHAT = "/v1/chat/completions"


def deltas(events: list[Any], name: str = "content", index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get(name) or "" for choice in choices)


async def test_a_whole_answer() -> None:
    async with served(says("Hello wörld!")) as app:
        answer = await app.post(CHAT, messages=USER, model="SmolLM2-135M-Instruct")
    body = answer.json
    assert answer.status == 200
    assert body["id"] == f"chatcmpl-{answer.headers['x-request-id']}"
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["model"] == "SmolLM2-135M-Instruct"
    assert body["system_fingerprint"].startswith("tinyllm-")
    [choice] = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello wörld!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == len("Hello wörld!".encode()) + 1
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stream_is_the_same_answer_in_pieces() -> None:
    async with served(says("Hello wörld!")) as app:
        whole = (await app.post(CHAT, messages=USER)).json
        answer = await app.stream(CHAT, messages=USER)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    events = answer.events
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert deltas(events) == whole["choices"][0]["message"]["content"]
    assert deltas(events, "role") == "assistant"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": "H"}
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop"]
    assert events[-1]["choices"][0]["delta"] == {}
    assert all("usage" not in event for event in events)


@pytest.mark.parametrize(
    ("options", "last", "others"),
    [
        (None, False, "absent"),
        ({}, False, "absent"),
        ({"include_usage": False}, False, "absent"),
        ({"include_usage": None}, False, "absent"),
        ({"include_usage": True}, True, "null"),
        ({"continuous_usage_stats": True}, False, "running"),
        (
            {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False},
            True,
            "running",
        ),
    ],
)
async def test_usage_in_streams(options: dict[str, bool] | None, last: bool, others: str) -> None:
    async with served(says("abc")) as app:
        events = (await app.stream(CHAT, messages=USER, stream_options=options)).events
        whole = (await app.post(CHAT, messages=USER)).json["usage"]
    if last:
        end = events.pop()
        assert end["choices"] == []
        assert end["usage"] == whole
    assert all(event["choices"] for event in events)
    match others:
        case "absent":
            assert all("usage" not in event for event in events)
        case "null":
            assert all(event["usage"] is None for event in events)
        case "running":
            counts = [event["usage"]["completion_tokens"] for event in events]
            assert counts == sorted(counts)
            assert events[-1]["usage"] == whole


async def test_usage_can_be_forced() -> None:
    async with served(says("a"), enable_force_include_usage=True) as app:
        events = (await app.stream(CHAT, messages=USER)).events
    assert events[-1]["choices"] == []


async def test_an_empty_answer_has_a_role_and_an_end() -> None:
    async with served(says("")) as app:
        whole = (await app.post(CHAT, messages=USER)).json["choices"][0]
        events = (await app.stream(CHAT, messages=USER)).events
    assert (whole["message"]["content"], whole["finish_reason"]) == ("", "stop")
    assert [event["choices"][0]["delta"] for event in events] == [{"role": "assistant", "content": ""}, {}]


async def test_several_answers_have_one_end_each() -> None:
    async with served(says("abc")) as app:
        whole = (await app.post(CHAT, messages=USER, n=3)).json
        events = (await app.stream(CHAT, messages=USER, n=3)).events
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 12
    for index in range(3):
        assert deltas(events, index=index) == "abc"
        assert deltas(events, "role", index) == "assistant"
    ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"] is not None]
    assert sorted(ends) == [0, 1, 2]
    assert all(len(event["choices"]) == 1 for event in events)


@pytest.mark.parametrize(
    ("fields", "text", "reason", "stop_reason"),
    [
        ({"max_tokens": 3}, "abc", "length", None),
        ({"max_completion_tokens": 2, "max_tokens": 5}, "ab", "length", None),
        ({"stop": "cd"}, "ab", "stop", "cd"),
        ({"stop": ["x", "de"]}, "abc", "stop", "de"),
        ({"stop": "cd", "include_stop_str_in_output": True}, "abcd", "stop", "cd"),
        ({"stop_token_ids": [ord("d")]}, "abc", "stop", ord("d")),
        ({"stop": None, "max_tokens": None}, "abcdef", "stop", None),
        ({"ignore_eos": True, "max_tokens": 8}, "abcdef", "length", None),
    ],
)
async def test_ends(fields: dict[str, Any], text: str, reason: str, stop_reason: str | int | None) -> None:
    async with served(says("abcdef")) as app:
        whole = (await app.post(CHAT, messages=USER, **fields)).json["choices"][0]
        events = (await app.stream(CHAT, messages=USER, **fields)).events
    assert whole["message"]["content"] == text == deltas(events)
    end = events[-1]["choices"][0]
    assert whole["finish_reason"] == reason == end["finish_reason"]
    assert whole["stop_reason"] == stop_reason == end["stop_reason"]


async def test_logprobs_of_a_stream_add_up_to_the_whole() -> None:
    async with served(says("aé!")) as app:
        fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
        whole = (await app.post(CHAT, messages=USER, **fields)).json["choices"][0]["logprobs"]["content"]
        events = (await app.stream(CHAT, messages=USER, **fields)).events
        plain = (await app.post(CHAT, messages=USER, logprobs=True)).json["choices"][0]["logprobs"]["content"]
        ids = (await app.post(CHAT, messages=USER, logprobs=True, return_tokens_as_token_ids=True)).json
    parts = [event["choices"][0]["logprobs"] for event in events]
    assert [entry for part in parts if part for entry in part["content"]] == whole
    assert [entry["bytes"] for entry in whole[:4]] == [[97], [0xC3], [0xA9], [33]]
    assert whole[0]["token"] == "a"
    assert [len(entry["top_logprobs"]) for entry in whole] == [2] * 5
    assert [entry["top_logprobs"] for entry in plain] == [[]] * 5
    assert ids["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:97"


async def test_token_ids_can_be_seen() -> None:
    async with served(says("ab")) as app:
        body = (await app.post(CHAT, messages=USER, return_token_ids=True)).json
        events = (await app.stream(CHAT, messages=USER, return_token_ids=True)).events
        prompt = (await app.post("/tokenize", messages=USER)).json["tokens"]
    assert body["prompt_token_ids"] == prompt
    ids = body["choices"][0]["token_ids"]
    assert ids[:2] == [97, 98]
    assert [i for event in events for i in event["choices"][0]["token_ids"]] == ids
    assert events[0]["prompt_token_ids"] == prompt
    assert all("prompt_token_ids" not in event for event in events[1:])


async def test_prompt_logprobs() -> None:
    async with served(says("a")) as app:
        body = (await app.post(CHAT, messages=USER, prompt_logprobs=1)).json
        refused = await app.post(CHAT, messages=USER, prompt_logprobs=1, stream=True)
    assert body["prompt_logprobs"][0] is None
    assert len(body["prompt_logprobs"]) == body["usage"]["prompt_tokens"]
    assert "s" in [known["decoded_token"] for known in body["prompt_logprobs"][1].values()]
    assert (refused.status, refused.error["param"]) == (400, "prompt_logprobs")


THOUGHTS = "<think>\nfirst\n\nsecond\n</think>\n\nHello"


async def test_thoughts_go_into_fields_of_their_own() -> None:
    async with served(says(THOUGHTS), reasoning="think") as app:
        body = (await app.post(CHAT, messages=USER)).json
        events = (await app.stream(CHAT, messages=USER, stream_options={"include_usage": True})).events
        hidden = (await app.post(CHAT, messages=USER, include_reasoning=False)).json
        hidden_events = (await app.stream(CHAT, messages=USER, include_reasoning=False)).events
    message = body["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] == "first\n\nsecond"
    assert message["content"] == "Hello"
    assert deltas(events) == deltas(hidden_events) == "Hello"
    assert deltas(events, "reasoning_content") == deltas(events, "reasoning") == "first\n\nsecond"
    assert deltas(events, "role") == deltas(hidden_events, "role") == "assistant"
    assert events[-1]["usage"] == body["usage"]
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] > 10
    assert "reasoning" not in hidden["choices"][0]["message"]
    assert deltas(hidden_events, "reasoning") == ""


async def test_a_prompt_may_open_the_thoughts() -> None:
    async with served(says("hm</think>Hello"), reasoning="think") as app:
        messages = [{"role": "user", "content": "hi"}]
        app.templates.render = lambda *_, **__: "user: hi\n<think>\n"  # type: ignore[method-assign]
        message = (await app.post(CHAT, messages=messages)).json["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hm", "Hello")


@pytest.mark.parametrize(
    ("begun", "rest", "reasoning", "content"),
    [
        ("<think>\nwell", " then</think>Hello", " then", "Hello"),
        ("<think>\n" + "well " * 50, "then</think>Hello", "then", "Hello"),
        ("<think>", "well</think>Hello", "well", "Hello"),
        ("<think>hm</think>", "\n\nHello", None, "Hello"),
        ("<think>hm</think>Hel", "lo <think>x</think>", None, "lo <think>x</think>"),
        ("Hel", "lo <think>x</think>", None, "lo <think>x</think>"),
    ],
)
async def test_an_answer_that_is_gone_on_with_may_be_at_its_thoughts(
    begun: str, rest: str, reasoning: str | None, content: str
) -> None:
    fields: dict[str, Any] = {
        "messages": [*USER, {"role": "assistant", "content": begun}],
        "continue_final_message": True,
    }
    async with served(says(rest), reasoning="think") as app:
        app.templates.render = lambda *_, **__: f"user: hi\nassistant: {begun}"  # type: ignore[method-assign]
        message = (await app.post(CHAT, **fields)).json["choices"][0]["message"]
        events = (await app.stream(CHAT, **fields)).events
    assert (message.get("reasoning"), message["content"]) == (reasoning, content)
    assert (deltas(events, "reasoning") or None, deltas(events)) == (reasoning, content)


async def test_text_of_other_models_is_left_alone() -> None:
    async with served(says(THOUGHTS)) as app:  # <think> is no token of theirs
        message = (await app.post(CHAT, messages=USER)).json["choices"][0]["message"]
    assert message["content"] == THOUGHTS


async def test_what_the_template_gets() -> None:
    async with served() as app:

        async def prompt(**fields: Any) -> str:
            text: str = (await app.post(f"{CHAT}/render", **fields)).json["prompt"]
            return text

        assert await prompt(messages=[{"role": "developer", "content": "x"}]) == "system: x\nassistant:"
        assert "enable_thinking=False" in await prompt(
            messages=USER, chat_template_kwargs={"enable_thinking": False}
        )
        assert "reasoning_effort=low" in await prompt(messages=USER, reasoning_effort="low")
        assert "add_generation_prompt=False" in await prompt(messages=USER, add_generation_prompt=False)
        assert "continue_final_message=True" in await prompt(messages=USER, continue_final_message=True)
        rendered = (await app.post(f"{CHAT}/render", messages=USER)).json
        answer = (await app.post(CHAT, messages=USER, return_token_ids=True, max_tokens=1)).json
    assert rendered["prompt_token_ids"] == answer["prompt_token_ids"]
    assert rendered["count"] == len(rendered["prompt_token_ids"]) == len(rendered["tokens"])
    assert "".join(token["text"] for token in rendered["tokens"]) == rendered["prompt"]


UNREAD: dict[str, Any] = {
    "messages": USER,
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": False, "a\nb": 1, "read": 2},
}


@pytest.mark.parametrize("path", [CHAT, f"{CHAT}/render", "/tokenize"])
async def test_variables_that_the_template_does_not_read_are_told(path: str) -> None:
    async with served() as app:
        app.templates.uses = lambda variable: variable == "read"  # type: ignore[method-assign]
        for cut in ({}, {"truncate_prompt_tokens": 4}) if path != "/tokenize" else ({},):
            ignored = (await app.post(path, **UNREAD, **cut)).headers["x-tinyllm-ignored-fields"]
            name = "chat_template_kwargs."
            assert set(ignored.split(", ")) == {"reasoning_effort", f"{name}enable_thinking", f"{name}a\\nb"}
        read = await app.post(path, messages=USER, chat_template_kwargs={"read": 1})
        assert "x-tinyllm-ignored-fields" not in read.headers
    async with served(strict_fields=True) as app:
        app.templates.uses = lambda variable: variable == "read"  # type: ignore[method-assign]
        refused = await app.post(path, messages=USER, chat_template_kwargs={"read": 1, "enable_thinking": 1})
    assert (refused.status, refused.error["param"]) == (400, "chat_template_kwargs.enable_thinking")


async def test_a_prompt_can_be_cut() -> None:
    fields: dict[str, Any] = {"messages": USER, "truncate_prompt_tokens": 4}
    async with served() as app:
        body = (await app.post(CHAT, **fields, max_tokens=1, return_token_ids=True)).json
        rendered = (await app.post(f"{CHAT}/render", **fields)).json
    assert bytes(body["prompt_token_ids"]) == b"ant:"
    assert rendered["prompt_token_ids"] == body["prompt_token_ids"]
    assert rendered["prompt"] == "".join(token["text"] for token in rendered["tokens"]) == "ant:"


async def test_a_fault_before_the_first_token_keeps_its_status() -> None:
    async with served() as app:
        await check_fault_first(app, stream=False)
        await check_fault_first(app, stream=True)


async def check_fault_first(app: Served, *, stream: bool) -> None:
    long = [{"role": "user", "content": "x" * 5000}]
    answer = await app.post(CHAT, messages=long, stream=stream)
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert answer.error["param"] == "messages"
    assert "maximum context length is 2048 tokens" in answer.error["message"]
    assert answer.headers["x-should-retry"] == "false"
    await idle(app.engine)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_an_answer_that_does_not_fit_is_named_as_it_was_asked_for(name: str) -> None:
    async with served() as app:
        error = (await app.post(CHAT, {"messages": USER, name: 4000})).error
    assert (error["code"], error["param"]) == ("context_length_exceeded", name)
    assert "4000 for the answer" in error["message"]


async def test_done_is_said_once_also_after_an_error() -> None:
    text = 'data: {"error": {}}\n\ndata: [DONE]\n\n'
    assert events_of(text) == [{"error": {}}]


FORGED = [{"role": "user", "content": "a<eos>b<e"}]


@pytest.mark.parametrize("special", [None, False, True])
@pytest.mark.parametrize("fields", [{}, {"truncate_prompt_tokens": 20}], ids=["whole", "cut"])
async def test_messages_cannot_spell_special_tokens_unless_told(
    special: bool | None, fields: dict[str, Any]
) -> None:
    options: dict[str, Any] = {} if special is None else {"special_tokens_in_messages": special}
    expected = 1 if special else 0
    async with served(**options) as app:
        body = {"messages": FORGED, "max_tokens": 1, "return_token_ids": True, **fields}
        ids = (await app.post(CHAT, body)).json["prompt_token_ids"]
        rendered = (await app.post(f"{CHAT}/render", messages=FORGED)).json
        tokens = (await app.post("/tokenize", messages=FORGED)).json["tokens"]
        item = {"input": FORGED, "max_output_tokens": 1}
        usage = (await app.post("/v1/responses", item)).json["usage"]
        text = (await app.post("/v1/completions", prompt="a<eos>", max_tokens=1, return_token_ids=True)).json
    assert ids.count(EOS) == tokens.count(EOS) == rendered["prompt_token_ids"].count(EOS) == expected
    assert rendered["prompt"] == "user: a<eos>b<e\nassistant:"
    assert "".join(token["text"] for token in rendered["tokens"]) == rendered["prompt"]
    assert [token["text"] for token in rendered["tokens"] if token["special"]] == ["<eos>"] * expected
    assert usage["input_tokens"] == len(tokens) == len(rendered["prompt"]) - 4 * expected
    assert text["choices"][0]["prompt_token_ids"] == [97, EOS]  # a prompt is the client's own
