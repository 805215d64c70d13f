"""The rules of shared/design/http.md, B1 to B6: which test holds each, and those that had none elsewhere.

`RULES` is the checklist. A rule about something that is not built says so; the first test fails if a rule is
missing, or if a test that is named here is not there.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeRunner, Gate, letters, says
from tests.server.harness import USER, idle, served
from tests.server.test_streams import Open, until
from tinyllm.server.protocol.body import SAMPLING_FIELDS
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.protocol.fields import HARMLESS_FIELDS, REFUSED_FIELDS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
NO_TOOLS = "not built: tools are refused by name (test_refused_fields_are_named_and_cost_nothing)"
NO_EMBEDDINGS = "not built: there is no /v1/embeddings"

RULES: dict[int, str] = {
    # B1: requests.
    1: "test_contract test_every_field_of_a_chat_call_is_known",
    2: "test_fields test_harmless_fields_are_taken, test_refused_fields_are_named_and_cost_nothing",
    3: "test_fields test_unknown_fields_are_listed_or_refused",
    4: "test_fields test_null_is_absent, test_null_is_absent_in_objects_too",
    5: "test_chat test_ends; test_completions test_sixteen_tokens_unless_told_otherwise; test_contract "
    "test_a_chat_goes_on_to_the_end_of_the_context",
    6: "test_completions test_forms_of_prompts, test_prompts_that_are_none",
    7: "test_real test_messages_that_are_none, test_parts_roles_and_tool_calls_of_a_history",
    8: "test_real test_parts_roles_and_tool_calls_of_a_history; test_chat test_what_the_template_gets",
    9: "test_chat test_ends; test_fields test_wrong_values_name_their_field",
    10: "test_completions test_seed_and_bias_reach_the_engine",
    11: "test_completions test_logprobs; test_fields test_wrong_values_of_chat; test_contract "
    "test_twenty_alternatives_and_no_more",
    12: "test_chat test_usage_in_streams; test_fields test_wrong_values_name_their_field",
    13: "test_contract test_greedy_answers_are_the_same",
    14: "test_http_requests test_d43_forms_that_are_not_built_are_refused_at_the_door",
    15: "test_fields test_harmless_fields_are_taken",
    16: NO_TOOLS,
    17: "test_fields test_wrong_values_name_their_field; test_real test_seed",
    18: "test_contract test_what_clients_of_vllm_send",
    19: "test_contract test_headers_of_clients; test_guard test_errors_of_the_framework_have_the_envelope",
    20: "test_fields test_model_names",
    21: "test_http_requests test_d50_careless_urls",
    22: NO_EMBEDDINGS,
    # B2: chat responses.
    23: "test_http_requests test_d45_one_reason_for_every_end",
    24: "test_chat test_ends",
    25: "test_chat test_ends",
    26: "test_chat test_a_whole_answer, test_several_answers_have_one_end_each",
    27: NO_TOOLS,
    28: NO_TOOLS,
    29: "test_chat test_logprobs_of_a_stream_add_up_to_the_whole; test_http "
    "test_d30_what_is_impossible_is_a_number",
    30: "test_contract test_the_fingerprint_is_the_same_after_a_restart",
    31: "test_chat test_a_whole_answer; test_guard test_every_response_has_an_id_and_safe_headers",
    # B3: completions responses.
    32: "test_completions test_logprobs, test_echo_scores_the_prompt_too",
    33: "test_http test_d31_offsets_are_places_in_the_text",
    34: "test_completions test_forms_of_prompts",
    35: "test_completions test_echo_scores_the_prompt_too",
    # B4: streaming.
    36: "test_chat test_a_stream_is_the_same_answer_in_pieces",
    37: "test_chat test_a_stream_is_the_same_answer_in_pieces; test_streams "
    "test_headers_wait_for_the_first_token",
    38: "test_chat test_several_answers_have_one_end_each",
    39: "test_http_requests test_d45_one_reason_for_every_end",
    40: "test_chat test_usage_in_streams",
    41: "test_chat test_usage_in_streams",
    42: "test_chat test_usage_in_streams",
    43: "test_streams test_a_fault_in_a_later_step_ends_the_stream_with_an_error",
    44: "test_streams test_a_fault_in_the_first_step_is_an_ordinary_error, "
    "test_a_fault_in_a_later_step_ends_the_stream_with_an_error",
    45: "test_http_requests test_d49_pings_are_comments_of_their_own",
    46: "test_hostile test_text_of_any_kind_is_only_text; test_contract test_events_are_lines_of_ascii_ends",
    47: NO_TOOLS,
    48: NO_TOOLS,
    49: "test_chat test_logprobs_of_a_stream_add_up_to_the_whole",
    50: "test_chat test_thoughts_go_into_fields_of_their_own",
    51: "test_chat test_several_answers_have_one_end_each",
    52: "test_contract test_the_first_token_is_out_at_once",
    # B5: errors, retries, keys.
    53: "test_guard test_errors_of_the_framework_have_the_envelope",
    54: "test_clients test_errors",
    55: "test_contract test_what_a_client_may_try_again",
    56: "test_http_requests test_d49_pings_are_comments_of_their_own",
    57: "test_contract test_types_and_codes",
    58: "test_chat test_a_fault_before_the_first_token_keeps_its_status",
    59: "test_guard test_errors_of_the_framework_have_the_envelope",
    60: "test_contract test_clients_that_try_again_do_not_pile_up",
}

CLIENTS: dict[str, str] = {
    "openai-python": "test_clients test_plain",
    "LangChain ChatOpenAI": "test_clients test_usage, test_parts_and_a_system_message",
    "LiteLLM": "test_clients test_the_name_for_servers_like_vllm",
    "Open WebUI": "test_contract test_as_open_webui_asks",
    "llm CLI": "test_clients test_a_conversation_goes_on",
    "vllm bench serve": "test_contract test_as_vllm_bench_serve_asks",
    "guidellm": "test_guidellm test_a_benchmark",
    "lm-eval-harness": "test_contract test_as_lm_eval_asks",
    "Claude Code / Codex": "test_responses test_a_stream_of_events_builds_the_same_response",
}
"""Of B6."""

PLACES = ("tests/server", "tests/conformance", "tests/clients")


def test_every_rule_has_its_test() -> None:
    assert list(RULES) == list(range(1, 61))
    root = Path(__file__).parents[2]
    for rule in (*RULES.values(), *CLIENTS.values()):
        if rule.startswith("not built: "):
            continue
        for entry in rule.split("; "):
            file, _, names = entry.partition(" ")
            [source] = [path for place in PLACES if (path := root / place / f"{file}.py").exists()]
            defined = re.findall(r"def (test_\w+)", source.read_text())
            for name in names.split(", "):
                assert name in defined, (file, name)


# The rules that had no test elsewhere.

FIELDS = {
    *("messages", "model", "audio", "frequency_penalty", "function_call", "functions"),
    *("logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata", "modalities"),
    *("moderation", "n", "parallel_tool_calls", "prediction", "presence_penalty"),
    *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort"),
    *("response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream"),
    *("stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user"),
    *("verbosity", "web_search_options"),
}
"""Of OpenAI's chat completions."""


def test_every_field_of_a_chat_call_is_known() -> None:
    known = set(ChatRequest.model_fields) | SAMPLING_FIELDS | HARMLESS_FIELDS | set(REFUSED_FIELDS)
    assert known >= FIELDS


@pytest.mark.asyncio
async def test_a_chat_goes_on_to_the_end_of_the_context() -> None:
    async with served(max_model_len=64) as app:
        body = (await app.post(CHAT, messages=USER)).json
    assert body["usage"]["total_tokens"] == 64
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.asyncio
async def test_twenty_alternatives_and_no_more() -> None:
    async with served() as app:
        fields: dict[str, Any] = {"messages": USER, "max_tokens": 1, "logprobs": True}
        [entry] = (await app.post(CHAT, **fields, top_logprobs=20)).json["choices"][0]["logprobs"]["content"]
        assert len(entry["top_logprobs"]) == 20
        assert (await app.post(CHAT, **fields, top_logprobs=21)).error["param"] == "top_logprobs"
        assert (await app.post(TEXT, prompt="a", max_tokens=1, logprobs=20)).status == 200
        assert (await app.post(TEXT, prompt="a", logprobs=21)).error["param"] == "logprobs"
        assert (await app.post(TEXT, prompt="a", logprobs=-1)).error["param"] == "logprobs"


@pytest.mark.asyncio
async def test_greedy_answers_are_the_same() -> None:
    async with served(letters) as app:
        body = (await app.post(CHAT, messages=USER, n=3, temperature=0, max_tokens=8)).json
    assert len({choice["message"]["content"] for choice in body["choices"]}) == 1


VLLM: dict[str, Any] = {
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "ignore_eos": False,
    "min_tokens": 1,
    "stop_token_ids": [0],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "truncate_prompt_tokens": 8,
    "allowed_token_ids": [97, 98, 256],
    "bad_words": ["zz"],
    "priority": 0,
    "request_id": "mine",
    "return_token_ids": True,
    "return_tokens_as_token_ids": False,
    "cache_salt": "salt",
}
VLLM_CHAT: dict[str, Any] = {
    "echo": False,
    "add_generation_prompt": True,
    "continue_final_message": False,
    "add_special_tokens": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "documents": [],
    "include_reasoning": True,
}


@pytest.mark.asyncio
async def test_what_clients_of_vllm_send() -> None:
    async with served(says("ab"), strict_fields=True) as app:
        chat = await app.post(CHAT, messages=USER, **VLLM, **VLLM_CHAT)
        text = await app.post(TEXT, prompt="a", echo=True, add_special_tokens=True, prompt_logprobs=1, **VLLM)
    assert chat.status == 200, chat.text
    assert text.status == 200, text.text


@pytest.mark.asyncio
async def test_headers_of_clients() -> None:
    stainless = {"x-stainless-lang": "python", "x-stainless-retry-count": "0", "x-stainless-timeout": "600"}
    openai = {"OpenAI-Organization": "org-1", "OpenAI-Project": "proj-1", "User-Agent": "OpenAI/Python 1.0"}
    key = {"authorization": "Bearer nothing-in-particular", "x-request-id": "r" * 128}
    async with served() as app:
        answer = await app.post(
            TEXT, {"prompt": "a", "max_tokens": 1}, headers={**stainless, **openai, **key}
        )
    assert answer.status == 200
    assert answer.headers["x-request-id"] == "r" * 128


@pytest.mark.asyncio
async def test_the_fingerprint_is_the_same_after_a_restart() -> None:
    found = set()
    for _ in range(2):
        async with served() as app:
            whole = (await app.post(CHAT, messages=USER, max_tokens=1)).json
            events = (await app.stream(CHAT, messages=USER, max_tokens=1)).events
            found |= {whole["system_fingerprint"], *(event["system_fingerprint"] for event in events)}
    [fingerprint] = found
    assert re.fullmatch(r"tinyllm-[0-9.]+-[0-9a-f]{8}", fingerprint)


@pytest.mark.asyncio
async def test_events_are_lines_of_ascii_ends() -> None:
    """Only LF ends a line, and what Python's splitlines or a terminal would end one at is inside JSON."""
    async with served(says("a\nb\r\nc\u2028d\u0085e\x0bf")) as app:
        answer = await app.stream(CHAT, messages=USER)
        whole = (await app.post(CHAT, messages=USER)).json["choices"][0]["message"]["content"]
    assert "\r" not in answer.text
    assert re.sub(r"data: [^\n]*\n\n", "", answer.text) == ""
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in answer.events)
    assert text == whole == "a\nb\r\nc\u2028d\u0085e\x0bf"


@pytest.mark.asyncio
async def test_the_first_token_is_out_at_once() -> None:
    async with (
        served(runner=FakeRunner(gate=Gate())) as app,
        Open(app, TEXT, {"prompt": "a", "stream": True, "max_tokens": 4}) as request,
    ):
        assert app.runner.gate is not None
        app.runner.gate.allow(1)
        assert (await request.read()).count("data: {") == 1  # while the second step waits
        app.runner.gate.open()
        assert len(await request.read_all()) <= 4


@pytest.mark.asyncio
async def test_what_a_client_may_try_again() -> None:
    """Clients try 408, 409, 429 and 5xx again by themselves, unless they are told not to."""
    async with served(runner=FakeRunner(gate=Gate()), max_num_seqs=1, max_waiting_requests=1) as app:
        gate = app.runner.gate
        assert gate is not None
        busy = [asyncio.create_task(app.post(TEXT, prompt="a", max_tokens=2)) for _ in range(2)]
        await until(lambda: app.engine.num_requests == 2)
        full = await app.post(TEXT, prompt="a")
        assert (full.status, "x-should-retry" in full.headers) == (429, False)
        assert 1 <= int(full.headers["retry-after"]) <= 120
        gate.open()
        await asyncio.gather(*busy)
        long = await app.post(TEXT, prompt="x" * 3000)
        assert (long.status, long.headers["x-should-retry"]) == (400, "false")
        app.runner.fail = RuntimeError("boom")
        dead = await app.post(TEXT, prompt="a")
        assert (dead.status, dead.headers["x-should-retry"]) == (503, "false")


@pytest.mark.asyncio
async def test_types_and_codes() -> None:
    key = "sk-0123456789abcdef"
    cases: list[tuple[dict[str, Any], dict[str, str], int, str, str]] = [
        ({"prompt": "a"}, {}, 401, "authentication_error", "invalid_api_key"),
        ({"prompt": "a", "model": "x"}, {"k": key}, 404, "not_found_error", "model_not_found"),
        ({"prompt": "x" * 3000}, {"k": key}, 400, "invalid_request_error", "context_length_exceeded"),
        ({"prompt": "a", "tools": [1]}, {"k": key}, 400, "invalid_request_error", "unsupported_parameter"),
        ({"prompt": "a", "n": 0}, {"k": key}, 400, "invalid_request_error", "invalid_value"),
        (
            {"prompt": "a"},
            {"k": key, "o": "https://x.example"},
            403,
            "permission_error",
            "origin_not_allowed",
        ),
    ]
    async with served(api_keys=(key,)) as app:
        for body, given, status, kind, code in cases:
            headers = {"authorization": f"Bearer {given['k']}"} if "k" in given else {}
            headers |= {"origin": given["o"]} if "o" in given else {}
            answer = await app.post(TEXT, body, headers=headers)
            assert (answer.status, answer.error["type"], answer.error["code"]) == (status, kind, code)
        app.service.begin_drain()
        closing = await app.post(TEXT, {"prompt": "a"}, headers={"authorization": f"Bearer {key}"})
    assert (closing.status, closing.error["type"]) == (503, "server_error")
    assert closing.error["code"] == "server_shutting_down"


@pytest.mark.asyncio
async def test_clients_that_try_again_do_not_pile_up() -> None:
    """Each try of a client that loses its patience ends before the next, so one place is enough for it."""
    async with served(runner=FakeRunner(gate=Gate()), max_num_seqs=1, max_waiting_requests=1) as app:
        gate = app.runner.gate
        assert gate is not None
        for number in range(5):
            async with Open(app, TEXT, {"prompt": "a", "max_tokens": 900}, f"try-{number}") as request:
                await asyncio.to_thread(gate.wait_entered)
                await request.disconnect()
            gate.allow(1)
            await idle(app.engine)
        gate.open()
        assert (await app.post(TEXT, prompt="a")).status == 200


# B6: clients that are too much to install; what they send.


@pytest.mark.asyncio
async def test_as_vllm_bench_serve_asks() -> None:
    """Only status 200 counts; it cuts at blank lines, and takes times from chunks that have choices."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    text: dict[str, Any] = {"prompt": "a b", "max_tokens": 6, "logprobs": None, "repetition_penalty": 1.0}
    content = [{"type": "text", "text": "a b"}]
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_completion_tokens": 6}
    async with served() as app:
        model = (await app.get("/v1/models")).json["data"][0]["id"]
        for path, body in ((TEXT, text), (CHAT, chat)):
            answer = await app.post(path, {"model": model, "temperature": 0.0, **body, **options})
            assert answer.status == 200, answer.text
            events = [block.removeprefix("data: ") for block in answer.text.strip().split("\n\n")]
            assert events.pop() == "[DONE]"
            assert '"choices":[],"usage":{' in events[-1]
            assert '"completion_tokens":6' in events[-1]
            assert sum('"choices":[{' in event for event in events) >= 6


@pytest.mark.asyncio
async def test_as_lm_eval_asks() -> None:
    """Log likelihoods: token arrays, the prompt echoed and scored, one token or none generated."""
    async with served() as app:
        for most in (0, 1):
            body = {
                "model": "SmolLM2-135M-Instruct",
                "prompt": [[97, 98, 99], [100, 101]],
                "max_tokens": most,
                "temperature": 0,
                "logprobs": 1,
                "seed": 1234,
                "echo": True,
            }
            choices = (await app.post(TEXT, body)).json["choices"]
            assert [choice["index"] for choice in choices] == [0, 1]
            for choice, length in zip(choices, (3, 2), strict=True):
                scores = choice["logprobs"]
                assert len(scores["tokens"]) == len(scores["token_logprobs"]) == length + most
                assert scores["token_logprobs"][0] is None
                assert all(type(score) is float for score in scores["token_logprobs"][1:])
                assert all(len(top) >= 1 for top in scores["top_logprobs"][1:])
        until_body = {"prompt": [[97]], "max_tokens": 8, "stop": ["x", "\n\n"], "temperature": 0, "seed": 1}
        assert (await app.post(TEXT, until_body)).status == 200


@pytest.mark.asyncio
async def test_as_open_webui_asks() -> None:
    """It lists models at a base URL with a slash too many, chats, and asks for a title on the side."""
    async with served(says("A title")) as app:
        listed = (await app.get("/v1//models")).json
        assert listed["object"] == "list"
        [model] = [entry["id"] for entry in listed["data"]]
        chat = await app.stream(
            CHAT,
            model=model,
            messages=USER,
            stream_options={"include_usage": True},
            metadata={"chat_id": "x"},
        )
        assert chat.events[-1]["usage"]["total_tokens"] > 0
        title: dict[str, Any] = {"stream": False, "max_completion_tokens": 1000}
        answer = await app.post(CHAT, model=model, messages=USER, **title)
        assert answer.json["choices"][0]["message"]["content"] == "A title"
