from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes import FakeRunner, Gate, says
from tests.server.harness import Served, served

pytestmark = pytest.mark.asyncio

PATH = "/v1/responses"


async def stream(app: Served, **fields: Any) -> list[dict[str, Any]]:
    answer = await app.post(PATH, stream=True, **fields)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def texts(body: dict[str, Any]) -> list[tuple[str, str]]:
    return [(item["type"], item["content"][0]["text"]) for item in body["output"]]


async def test_a_whole_response() -> None:
    async with served(says("Hello")) as app:
        answer = await app.post(PATH, input="hi", instructions="Be brief.", metadata={"a": "b"}, store=True)
    body = answer.json
    assert body["id"] == f"resp_{answer.headers['x-request-id']}"
    assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)
    assert texts(body) == [("message", "Hello")]
    assert body["output"][0]["role"] == "assistant"
    assert body["store"] is False
    usage = body["usage"]
    assert usage["output_tokens"] == 6
    assert usage["total_tokens"] == usage["input_tokens"] + 6


async def test_a_stream_of_events_builds_the_same_response() -> None:
    async with served(says("<think>hm</think>Hello"), reasoning="think") as app:
        whole = (await app.post(PATH, input="hi")).json
        events = await stream(app, input="hi")
    names = [event["type"] for event in events]
    assert names[:2] == ["response.created", "response.in_progress"]
    assert names[-1] == "response.completed"
    for kind in ("reasoning_text", "output_text"):
        said = "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
        [done] = [event for event in events if event["type"] == f"response.{kind}.done"]
        assert done["text"] == said
    for name in ("output_item.added", "content_part.added", "content_part.done", "output_item.done"):
        assert names.count(f"response.{name}") == 2
    final = events[-1]["response"]
    assert texts(final) == texts(whole) == [("reasoning", "hm"), ("message", "Hello")]
    assert without(final, "id", "created_at", "output") == without(whole, "id", "created_at", "output")


async def test_an_empty_answer_has_an_item() -> None:
    async with served(says("")) as app:
        events = await stream(app, input="hi")
        whole = (await app.post(PATH, input="hi")).json
    assert texts(events[-1]["response"]) == texts(whole) == [("message", "")]


async def test_a_response_cut_short_says_so() -> None:
    async with served() as app:
        whole = (await app.post(PATH, input="hi", max_output_tokens=2)).json
        events = await stream(app, input="hi", max_output_tokens=2)
    assert events[-1]["type"] == "response.incomplete"
    for response in (whole, events[-1]["response"]):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in response["output"]] == ["incomplete"]


@pytest.mark.parametrize(
    ("most", "statuses"),
    [(8, ["incomplete"] * 2), (20, ["completed", "incomplete"]), (40, ["completed"] * 2)],
)
async def test_what_was_cut_short_of_thoughts_and_text(most: int, statuses: list[str]) -> None:
    async with served(says("<think>hm</think>Hello"), reasoning="think") as app:
        whole = (await app.post(PATH, input="hi", max_output_tokens=most)).json
        events = await stream(app, input="hi", max_output_tokens=most)
    for response in (whole, events[-1]["response"]):
        assert [item["status"] for item in response["output"]] == statuses
    done = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"]
    assert done == statuses


async def test_conversations_as_items() -> None:
    items = [
        {"role": "developer", "content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": [{"type": "output_text", "text": "yes"}]},
        {"role": "user", "content": "go on"},
    ]
    async with served() as app:
        seen: list[Any] = []

        def render(messages: Any, *_: Any, **__: Any) -> str:
            seen.extend(messages)
            return "x"

        app.templates.render = render  # type: ignore[method-assign,assignment]
        answer = await app.post(PATH, input=items, instructions="first", max_output_tokens=1)
    assert answer.status == 200
    assert [message["role"] for message in seen] == ["system", "system", "user", "assistant", "user"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", None),
        ("input", 7),
        ("input", ["hi"]),
        ("input", [{"type": "function_call_output", "output": "x"}]),
        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]),
        ("previous_response_id", "resp_1"),
        ("conversation", "x"),
        ("background", True),
        ("tools", [{"type": "web_search"}]),
        ("text", 7),
        ("text.format", {"format": {"type": "json_object"}}),
        ("truncation", "auto"),
        ("max_output_tokens", 0),
        ("max_tokens", 3),
        ("n", 2),
        ("logprobs", 1),
        ("top_logprobs", 2),
        ("return_token_ids", True),
        ("return_tokens_as_token_ids", True),
        ("prompt", {"id": "x"}),
    ],
)
async def test_what_is_refused(field: str, value: Any) -> None:
    async with served() as app:
        name = field.partition(".")[0]
        answer = await app.post(PATH, {"input": "hi", name: value})
        assert answer.status == 400, answer.text
        assert answer.error["param"] == field
        assert app.runner.steps == []


async def test_what_does_not_fit_is_named_as_here() -> None:
    async with served() as app:
        long = await app.post(PATH, input="x" * 5000)
        many = await app.post(PATH, input="hi", max_output_tokens=4000)
    assert (long.error["code"], long.error["param"]) == ("context_length_exceeded", "input")
    assert (many.error["code"], many.error["param"]) == ("context_length_exceeded", "max_output_tokens")


async def test_a_fault_in_the_middle_is_an_event() -> None:
    runner = FakeRunner(gate=Gate())
    assert runner.gate is not None
    async with served(runner=runner, sse_ping_interval=0.01) as app:
        runner.fail = RuntimeError("boom")
        request = app.client.request(PATH, method="POST", headers={"content-type": "application/json"})
        async with request:
            await request.send(b'{"input": "hi", "stream": true}')
            await request.send_complete()
            text = (await request.receive()).decode()
            runner.gate.open()
            while "response.failed" not in text:
                text += (await request.receive()).decode()
    assert "event: error\n" in text
    assert '"code":"engine_dead"' in text
