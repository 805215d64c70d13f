from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import says
from tests.server.harness import idle, served

pytestmark = pytest.mark.asyncio

PATH = "/v1/completions"


def texts(events: list[Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
    return found


async def test_a_whole_answer() -> None:
    async with served(says("Hello")) as app:
        answer = await app.post(PATH, prompt="Say it")
    body = answer.json
    assert body["id"] == f"cmpl-{answer.headers['x-request-id']}"
    assert body["object"] == "text_completion"
    choice = {"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    assert body["choices"] == [choice]
    assert body["usage"]["prompt_tokens"] == 6
    assert body["usage"]["completion_tokens"] == 6


async def test_a_stream_has_the_same_object_name_and_text() -> None:
    async with served(says("Hello")) as app:
        events = (await app.stream(PATH, prompt="Say it", stream_options={"include_usage": True})).events
        whole = (await app.post(PATH, prompt="Say it")).json
    usage = events.pop()
    assert {event["object"] for event in events} == {"text_completion"}
    assert texts(events) == {0: "Hello"}
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])


async def test_sixteen_tokens_unless_told_otherwise() -> None:
    async with served() as app:
        assert (await app.post(PATH, prompt="a")).json["usage"]["completion_tokens"] == 16
        assert (await app.post(PATH, prompt="a", max_tokens=20)).json["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize(
    ("prompt", "echoed"),
    [
        ("ab", ["ab"]),
        (["ab", "c"], ["ab", "c"]),
        ([97, 98], ["ab"]),
        ([[97], [98, 99]], ["a", "bc"]),
        (["a", [98]], ["a", "b"]),
        ([0], ["\x00"]),
        ([[0]], ["\x00"]),
    ],
)
async def test_forms_of_prompts(prompt: Any, echoed: list[str]) -> None:
    async with served(says("!")) as app:
        whole = (await app.post(PATH, prompt=prompt, echo=True, n=2)).json
        events = (await app.stream(PATH, prompt=prompt, echo=True, n=2)).events
    expected = [text + "!" for text in echoed for _ in range(2)]
    assert [choice["index"] for choice in whole["choices"]] == list(range(len(expected)))
    assert [choice["text"] for choice in whole["choices"]] == expected
    assert texts(events) == dict(enumerate(expected))
    ends = [c["index"] for e in events for c in e["choices"] if c["finish_reason"] is not None]
    assert sorted(ends) == list(range(len(expected)))
    prompt_tokens = sum(len(text) for text in echoed)
    assert whole["usage"]["prompt_tokens"] == prompt_tokens
    assert whole["usage"]["completion_tokens"] == 2 * len(expected)


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[]],
        [-1],
        [[-1]],
        [258],
        "",
        [""],
        [1.5],
        [True],
        ["a", 1],
        {},
        7,
        None,
        [[["a"]]],
        ["a"] * 33,
        [None],
    ],
    ids=str,
)
async def test_prompts_that_are_none(prompt: Any) -> None:
    async with served() as app:
        answer = await app.post(PATH, prompt=prompt)
        assert answer.status == 400
        assert answer.error["param"] == "prompt"
        assert app.runner.steps == []


async def test_more_answers_than_there_will_ever_be_room_for_are_no_overload() -> None:
    async with served(max_num_seqs=2, max_waiting_requests=4) as app:
        answer = await app.post(PATH, prompt=["a"] * 4, n=2, max_tokens=1)
        assert (answer.status, answer.error["param"]) == (400, "prompt")
        assert answer.headers["x-should-retry"] == "false"
        assert app.runner.steps == []
        assert (await app.post(PATH, prompt=["a"] * 3, n=2, max_tokens=1)).status == 200


async def test_one_bad_prompt_stops_all() -> None:
    async with served() as app:
        answer = await app.post(PATH, prompt=["good", "x" * 3000], max_tokens=1000)
        assert answer.error["code"] == "context_length_exceeded"
        await idle(app.engine)


async def test_logprobs() -> None:
    async with served(says("aé")) as app:
        fields: dict[str, Any] = {"prompt": "x", "logprobs": 1}
        whole = (await app.post(PATH, **fields)).json["choices"][0]["logprobs"]
        events = (await app.stream(PATH, **fields)).events
        zero = (await app.post(PATH, prompt="x", logprobs=0)).json["choices"][0]["logprobs"]
        ids = (await app.post(PATH, **fields, return_tokens_as_token_ids=True)).json["choices"][0]["logprobs"]
    assert whole["tokens"][0] == "a"
    assert whole["token_logprobs"] == [-0.5] * 4
    assert whole["top_logprobs"][0] == {"\x00": -1.0, "a": -0.5}
    assert whole["text_offset"][:2] == [0, 1]
    for name, values in whole.items():
        parts = [event["choices"][0]["logprobs"][name] for event in events]
        assert [value for part in parts for value in part] == values
    assert zero["top_logprobs"][0] == {"a": -0.5}
    assert ids["tokens"][0] == "token_id:97"


async def test_echo_scores_the_prompt_too() -> None:
    async with served(says("c")) as app:
        fields: dict[str, Any] = {"prompt": ["ab", [100]], "echo": True, "logprobs": 1}
        whole = (await app.post(PATH, **fields)).json
        events = (await app.stream(PATH, **fields)).events
        alone = (await app.post(PATH, prompt="ab", echo=True, logprobs=1, max_tokens=0)).json["choices"][0]
    logprobs = whole["choices"][0]["logprobs"]
    assert logprobs["tokens"][:3] == ["a", "b", "c"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:3] == [0, 1, 2]
    for index, choice in enumerate(whole["choices"]):
        parts = [c["logprobs"] for e in events for c in e["choices"] if c["index"] == index]
        for name, values in choice["logprobs"].items():
            assert [value for part in parts for value in part[name]] == values
    assert (alone["text"], alone["finish_reason"]) == ("ab", "length")
    assert alone["logprobs"]["token_logprobs"] == [None, -0.5]


async def test_prompt_logprobs_without_echo() -> None:
    async with served(says("c")) as app:
        choice = (await app.post(PATH, prompt="ab", prompt_logprobs=0)).json["choices"][0]
        refused = await app.post(PATH, prompt="ab", prompt_logprobs=0, stream=True)
        both = (await app.post(PATH, prompt="ab", prompt_logprobs=0, logprobs=0)).json["choices"][0]
        echoed = (await app.post(PATH, prompt="ab", logprobs=0, echo=True)).json["choices"][0]
        stream = await app.post(PATH, prompt="ab", prompt_logprobs=0, logprobs=0, echo=True, stream=True)
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1] == {"98": {"logprob": -0.5, "rank": None, "decoded_token": "b"}}
    assert refused.error["param"] == stream.error["param"] == "prompt_logprobs"
    assert both["prompt_logprobs"] == choice["prompt_logprobs"]
    assert both["logprobs"]["tokens"][0] == "c"
    assert "prompt_logprobs" not in echoed


async def test_token_ids_and_cut_prompts() -> None:
    async with served(says("c")) as app:
        choice = (await app.post(PATH, prompt="abcd", truncate_prompt_tokens=2, return_token_ids=True)).json[
            "choices"
        ][0]
        plain = (await app.post(PATH, prompt="ab", add_special_tokens=False)).json
    assert choice["prompt_token_ids"] == [99, 100]
    assert choice["token_ids"][0] == 99
    assert plain["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0])
async def test_token_ids_of_a_stream_are_those_of_the_whole(echo: bool, logprobs: int | None) -> None:
    fields: dict[str, Any] = {"prompt": ["ab", [99]], "n": 2, "echo": echo, "logprobs": logprobs}
    async with served(says("éc")) as app:
        whole = (await app.post(PATH, **fields, return_token_ids=True)).json["choices"]
        events = (await app.stream(PATH, **fields, return_token_ids=True)).events
    for choice in whole:
        parts = [c for e in events for c in e["choices"] if c["index"] == choice["index"]]
        assert [i for part in parts for i in part["token_ids"]] == choice["token_ids"]
        assert parts[0]["prompt_token_ids"] == choice["prompt_token_ids"]
        assert all("prompt_token_ids" not in part for part in parts[1:])


async def test_seed_and_bias_reach_the_engine() -> None:
    async with served() as app:
        answer = await app.post(PATH, prompt="a", seed=7, logit_bias={"97": 5, "98": -1.5}, max_tokens=1)
        assert answer.status == 200
        for bias in ({"999": 1}, {"x": 1}, {"97": 101}, {"97": "1"}, {"-1": 1}, [97]):
            answer = await app.post(PATH, prompt="a", logit_bias=bias)
            assert answer.error["param"] == "logit_bias", bias
