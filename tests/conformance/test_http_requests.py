"""Sections D4 and D5 of shared/design/conformance.md over HTTP: templates, requests, streams."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from tests.conformance.test_http import real
from tests.fakes import FakeRunner, Gate, says
from tests.server.harness import USER, Answer, events_of, idle, served
from tests.server.test_streams import Open

pytestmark = pytest.mark.asyncio

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODY: dict[str, dict[str, Any]] = {CHAT: {"messages": USER}, TEXT: {"prompt": "hi"}}
BOS = 1


@pytest.fixture
def copied(tiny_llama: Path, tmp_path: Path) -> Path:
    """The random Llama without a chat template, to be changed."""
    place = tmp_path / "model"
    shutil.copytree(tiny_llama, place)
    config = json.loads((place / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place


def adds_bos(model: Path) -> None:
    """Let the tokenizer put BOS before every text."""
    path = str(model / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", BOS)]
    )
    tokenizer.save(path)


@pytest.mark.parametrize("prints", [True, False])
async def test_d35_exactly_one_bos(copied: Path, prints: bool) -> None:
    """The template prints BOS, the tokenizer adds one, or both; rendered and real prompts are the same."""
    adds_bos(copied)
    start = "{{ bos_token }}" if prints else ""
    (copied / "chat_template.jinja").write_text(start + "{% for m in messages %}{{ m.content }}{% endfor %}")
    async with real(copied) as client:
        fields: dict[str, Any] = {"messages": USER, "max_tokens": 1, "return_token_ids": True}
        chat = await (await client.post(CHAT, json=fields)).get_json()
        rendered = await (await client.post(f"{CHAT}/render", json={"messages": USER})).get_json()
        text = await (await client.post("/tokenize", json={"prompt": "hi"})).get_json()
        cut = await (await client.post("/tokenize", json={"messages": USER})).get_json()
    ids = chat["prompt_token_ids"]
    assert ids.count(BOS) == (1 if prints else 0)  # a template has all the special tokens there are
    assert text["tokens"].count(BOS) == 1
    assert ids == rendered["prompt_token_ids"] == cut["tokens"]


async def test_d36_no_template_is_400_for_chat_alone(copied: Path) -> None:
    async with real(copied) as client:
        for path in (CHAT, f"{CHAT}/render", "/tokenize"):
            answer = await client.post(path, json={"messages": USER})
            assert answer.status_code == 400, path
            assert (await answer.get_json())["error"]["code"] == "chat_template_error"
        assert (await client.post(TEXT, json={"prompt": "a", "max_tokens": 1})).status_code == 200


async def test_d36_the_jinja_file_counts_before_the_config(tiny_llama: Path, tmp_path: Path) -> None:
    place = tmp_path / "model"
    shutil.copytree(tiny_llama, place)
    (place / "chat_template.jinja").write_text("from the file: {{ messages[0].content }}")
    async with real(place) as client:
        rendered = await (await client.post(f"{CHAT}/render", json={"messages": USER})).get_json()
    assert rendered["prompt"] == "from the file: hi"


@pytest.mark.parametrize("stream", [False, True])
async def test_d37_a_template_that_refuses(copied: Path, stream: bool) -> None:
    """What the template says against the messages reaches the client, and nothing else comes of it."""
    template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}ok"
    )
    (copied / "chat_template.jinja").write_text(template)
    async with real(copied) as client:
        refused = [{"role": "system", "content": "x"}, *USER]
        answer = await client.post(CHAT, json={"messages": refused, "stream": stream})
        error = (await answer.get_json())["error"]
        assert (answer.status_code, error["code"]) == (400, "chat_template_error")
        assert "no system role here" in error["message"]
        assert (await client.post(CHAT, json={"messages": USER, "max_tokens": 1})).status_code == 200


async def test_d37_templates_are_in_a_sandbox(copied: Path) -> None:
    (copied / "chat_template.jinja").write_text("{{ ''.__class__.__mro__ }}")
    async with real(copied) as client:
        answer = await client.post(CHAT, json={"messages": USER})
        assert answer.status_code == 400
        assert "class" not in (await answer.get_data(as_text=True)).replace("__class__", "")


async def test_d38_an_assistant_that_only_called_a_tool(tiny_llama: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "seven"},
    ]
    async with real(tiny_llama) as client:
        rendered = await (await client.post(f"{CHAT}/render", json={"messages": messages})).get_json()
    assert "None" not in rendered["prompt"]
    assert "seven" in rendered["prompt"]
    assert rendered["prompt"].count("<|im_start|>assistant") == 2


@pytest.mark.parametrize("prompt", ["", [""], ["a", ""]])
async def test_d41_an_empty_prompt_without_bos(tiny_llama: Path, prompt: Any) -> None:
    async with real(tiny_llama) as client:
        answer = await client.post(TEXT, json={"prompt": prompt})
        assert answer.status_code == 400
        assert (await answer.get_json())["error"]["param"] == "prompt"
        assert (await client.post(TEXT, json={"prompt": "a", "max_tokens": 1})).status_code == 200


async def test_d41_an_empty_prompt_with_bos(copied: Path) -> None:
    """A tokenizer that adds BOS gives an empty text one token, and so it can be gone on with."""
    adds_bos(copied)
    async with real(copied) as client:
        answer = await client.post(TEXT, json={"prompt": "", "max_tokens": 2, "return_token_ids": True})
        assert (await answer.get_json())["choices"][0]["prompt_token_ids"] == [BOS]


@pytest.mark.parametrize(
    ("prompt", "status"),
    [([0], 200), ([[0]], 200), ([-1], 400), ([[-1]], 400), ([], 400), ([[]], 400), ([10**9], 400)],
)
async def test_d42_token_ids(prompt: Any, status: int) -> None:
    async with served() as app:
        answer = await app.post(TEXT, prompt=prompt)
        assert answer.status == status
        assert bool(app.runner.steps) == (status == 200)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d43_forms_that_are_not_built_are_refused_at_the_door(path: str) -> None:
    forms: list[dict[str, Any]] = [
        {"structured_outputs": {"json_object": False}},
        {"structured_outputs": {"json": ""}},
        {"structured_outputs": {}},
        {"guided_json": {"type": "no such type"}},
        {"guided_regex": "("},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "text", "schema": {}}},
        {"response_format": "json"},
    ]
    async with served() as app:
        for form in forms:
            answer = await app.post(path, **BODY[path], **form)
            assert (answer.status, answer.error["param"]) == (400, next(iter(form))), form
        assert app.runner.steps == []


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("options", "last", "others"),
    [
        (None, False, "absent"),
        ({}, False, "absent"),
        ({"include_usage": True}, True, "null"),
        ({"include_usage": True, "continuous_usage_stats": True}, True, "running"),
    ],
)
async def test_d44_usage_in_streams(path: str, options: Any, last: bool, others: str) -> None:
    async with served(says("abc")) as app:
        events = (await app.stream(path, **BODY[path], stream_options=options)).events
    assert [event["choices"] == [] for event in events] == [False] * (len(events) - last) + [True] * last
    rest = events[: len(events) - last]
    kinds = {"absent" if "usage" not in e else "null" if e["usage"] is None else "running" for e in rest}
    assert kinds == {others}


ENDINGS: dict[str, dict[str, Any]] = {
    "eos": {},
    "length": {"max_tokens": 2},
    "no tokens at all": {"max_tokens": 0},
    "stop string": {"stop": "c"},
    "stop token": {"stop_token_ids": [99]},
    "context": {"ignore_eos": True, "max_tokens": 60, "truncate_prompt_tokens": 4},
    "several": {"n": 3},
}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_d45_one_reason_for_every_end(path: str, ending: str) -> None:
    body = {**BODY[path], **ENDINGS[ending]}
    if path == TEXT and ending != "length" and "max_tokens" not in body:
        body["max_tokens"] = 30
    async with served(says("abcdef"), max_model_len=64) as app:
        whole = (await app.post(path, body)).json["choices"]
        events = (await app.stream(path, **body)).events
    ends = [(c["index"], c["finish_reason"]) for e in events for c in e["choices"] if c["finish_reason"]]
    assert sorted(ends) == [(choice["index"], choice["finish_reason"]) for choice in whole]
    assert {reason for _, reason in ends} <= {"stop", "length"}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
async def test_d46_a_fault_at_step_0_has_its_status(path: str, stream: bool) -> None:
    async with served() as app:
        app.runner.faults = {"mine-0/0": ValueError("boom")}
        answer = await app.post(path, {**BODY[path], "stream": stream}, headers={"x-request-id": "mine"})
        assert (answer.status, answer.error["code"]) == (500, "request_failed")
        assert "boom" not in answer.text
        await idle(app.engine)


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d46_a_fault_at_step_5_is_the_last_event(path: str) -> None:
    async with served(runner=FakeRunner(gate=Gate())) as app:
        gate = app.runner.gate
        assert gate is not None
        async with Open(app, path, {**BODY[path], "stream": True, "max_tokens": 50}, "mine") as request:
            gate.allow(5)
            while request.text.count("data:") < 3:
                await request.read()
            app.runner.faults = {"mine-0/0": ValueError("boom")}
            gate.open()
            events = await request.read_all()
    assert events[-1]["error"]["code"] == "request_failed"
    assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])


def deltas(answer: Answer, name: str) -> str:
    return "".join(event["choices"][0]["delta"].get(name) or "" for event in answer.events)


@pytest.mark.parametrize(
    "text", ["<think>a<b</thin></think>c", "<think>\nwhy?\n</think>\n\nso", "<thin>k</think>"]
)
async def test_d48_thoughts_however_they_are_cut(text: str) -> None:
    """A token is a byte here, so every tag comes in pieces; a whole answer is the same."""
    async with served(says(text), reasoning="think") as app:
        streamed = await app.stream(CHAT, messages=USER)
        message = (await app.post(CHAT, messages=USER)).json["choices"][0]["message"]
    thought, found, said = text.removeprefix("<think>").partition("</think>")
    if not text.startswith("<think>") or not found:
        thought, said = "", text
    assert deltas(streamed, "content") == message["content"] == said.lstrip("\n")
    assert deltas(streamed, "reasoning") == message.get("reasoning", "") == thought.strip("\n")


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_d49_pings_are_comments_of_their_own(path: str) -> None:
    """As ``vllm bench serve`` reads: cut at blank lines, and skip what begins with a colon."""
    async with (
        served(runner=FakeRunner(gate=Gate()), sse_ping_interval=0.02) as app,
        Open(app, path, {**BODY[path], "stream": True, "max_tokens": 2}) as request,
    ):
        while request.text.count(": ping") < 2:
            await request.read()
        assert app.runner.gate is not None
        app.runner.gate.open()
        await request.read_all()
    blocks = request.text.split("\n\n")
    assert blocks[:2] == [": ping", ": ping"]
    assert all(block.startswith(("data: ", ": ping")) for block in blocks[:-1])
    assert len(events_of(request.text)) >= 2


@pytest.mark.parametrize("path", ["/v1//models", "/v1/models/", "//v1/models//", "/v1//chat//completions/"])
async def test_d50_careless_urls(path: str) -> None:
    async with served() as app:
        answer = await (app.get(path) if "models" in path else app.post(path, messages=USER, max_tokens=1))
    assert answer.status == 200
