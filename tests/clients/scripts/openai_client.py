"""The official client, the newest and the last 1.x: the same calls."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from common import HI, LONG, arguments, inner_words, run

URL, KEY, MODEL = arguments()
client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
chat = client.chat.completions
GREEDY: dict[str, Any] = {"model": MODEL, "messages": HI, "temperature": 0, "max_tokens": 12}


def plain() -> Any:
    answer = chat.create(**GREEDY)
    [choice] = answer.choices
    usage = answer.usage
    assert usage is not None
    return {
        "text": choice.message.content,
        "role": choice.message.role,
        "finish": choice.finish_reason,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
        "object": answer.object,
        "model": answer.model,
        "fingerprint": answer.system_fingerprint,
        "request_id": answer._request_id,
        "id": answer.id,
    }


def stream() -> Any:
    chunks = list(chat.create(**GREEDY, stream=True))
    return {
        "text": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "finishes": [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason],
        "ids": len({chunk.id for chunk in chunks}),
        "usages": sum(chunk.usage is not None for chunk in chunks),
    }


def usage() -> Any:
    chunks = list(chat.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    last = chunks[-1]
    assert last.usage is not None
    return {
        "choices_of_last": len(last.choices),
        "others": sum(chunk.usage is not None for chunk in chunks[:-1]),
        "usage": [last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens],
    }


def helper() -> Any:
    """Accumulate a stream with the client's own helper, which is picky about deltas and ends."""
    word = inner_words(chat.create(**GREEDY).choices[0].message.content or "")
    with chat.stream(**GREEDY, n=2, stop=word) as manager:
        kinds = [event.type for event in manager]
        final = manager.get_final_completion()
    return {
        "texts": [choice.message.content for choice in final.choices],
        "roles": [choice.message.role for choice in final.choices],
        "finishes": [choice.finish_reason for choice in final.choices],
        "done": kinds.count("content.done"),
    }


def stop() -> Any:
    text = chat.create(**GREEDY).choices[0].message.content or ""
    word = inner_words(text)
    choice = chat.create(**GREEDY, stop=[word]).choices[0]
    pieces = [chunk.choices[0].delta.content or "" for chunk in chat.create(**GREEDY, stop=word, stream=True)]
    return {
        "expected": text.partition(word)[0],
        "text": choice.message.content,
        "streamed": "".join(pieces),
        "finish": choice.finish_reason,
    }


def several() -> Any:
    answer = chat.create(**{**GREEDY, "temperature": 1.5}, n=3, seed=1)
    return {
        "indices": [choice.index for choice in answer.choices],
        "texts": [choice.message.content for choice in answer.choices],
        "tokens": answer.usage and answer.usage.completion_tokens,
    }


def logprobs() -> Any:
    answer = chat.create(**GREEDY, logprobs=True, top_logprobs=3).choices[0]
    assert answer.logprobs is not None
    entries = answer.logprobs.content or []
    streamed: list[Any] = []
    for chunk in chat.create(**GREEDY, logprobs=True, top_logprobs=3, stream=True):
        part = chunk.choices[0].logprobs
        streamed += (part.content or []) if part is not None else []
    return {
        "count": len(entries),
        "tops": sorted({len(entry.top_logprobs) for entry in entries}),
        "bytes": bytes(byte for entry in entries for byte in entry.bytes or ()).decode(errors="replace"),
        "text": answer.message.content,
        "streamed_alike": [entry.token for entry in streamed] == [entry.token for entry in entries],
        "best_first": all(entry.logprob == entry.top_logprobs[0].logprob for entry in entries),
    }


def seed() -> Any:
    fields = {**GREEDY, "temperature": 1.5}
    same = [chat.create(**fields, seed=7).choices[0].message.content for _ in range(2)]
    return {"same": same, "other": chat.create(**fields, seed=8).choices[0].message.content}


def completions() -> Any:
    answer = client.completions.create(
        model=MODEL, prompt=["One", "Two"], max_tokens=4, temperature=0, echo=True, logprobs=2
    )
    chunks = client.completions.create(model=MODEL, prompt="One", max_tokens=4, temperature=0, stream=True)
    scores = answer.choices[0].logprobs
    assert scores is not None
    return {
        "texts": [choice.text for choice in answer.choices],
        "streamed": "".join(chunk.choices[0].text for chunk in chunks),
        "first": [(scores.token_logprobs or [0])[0], (scores.text_offset or [-1])[0]],
        "lengths": len(
            {len(scores.tokens or ()), len(scores.token_logprobs or ()), len(scores.text_offset or ())}
        ),
    }


def responses() -> Any:
    fields: dict[str, Any] = {"model": MODEL, "input": "Say something.", "temperature": 0}
    answer = client.responses.create(**fields, max_output_tokens=6)
    events = list(client.responses.create(**fields, max_output_tokens=6, stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    return {
        "text": answer.output_text,
        "status": answer.status,
        "reason": answer.incomplete_details and answer.incomplete_details.reason,
        "streamed": deltas,
        "last": events[-1].type,
        "usage": answer.usage and answer.usage.output_tokens,
    }


def errors() -> Any:
    bad_key = openai.OpenAI(base_url=f"{URL}/v1", api_key="sk-not-the-right-one", max_retries=0)
    calls: dict[str, Any] = {
        "value": lambda: chat.create(**{**GREEDY, "temperature": -1}),
        "tools": lambda: chat.create(
            **GREEDY, tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]
        ),
        "length": lambda: chat.create(**{**GREEDY, "messages": [{"role": "user", "content": "x " * 9000}]}),
        "model": lambda: chat.create(**{**GREEDY, "model": "gpt-9"}),
        "key": lambda: bad_key.models.list(),
        "stream": lambda: list(chat.create(**{**GREEDY, "top_p": 7}, stream=True)),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "nothing was raised"
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.status_code, error.code, error.param]
    return found


def cancel() -> Any:
    fields: dict[str, Any] = {**GREEDY, "max_tokens": LONG, "extra_body": {"ignore_eos": True}}
    answer = chat.create(**fields, stream=True)
    seen = [next(answer) for _ in range(3)]
    answer.close()

    async def give_up() -> str:
        other = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
        try:
            async with asyncio.timeout(1):
                await other.chat.completions.create(**fields)
        except TimeoutError:
            return "gave up"
        return "there was an answer"

    return {"seen": len(seen), "plain": asyncio.run(give_up())}


def models() -> Any:
    listed = [model.id for model in client.models.list()]
    one = client.models.retrieve(MODEL)
    return {"listed": listed, "one": [one.id, one.object, one.owned_by, one.created > 0]}


def extras() -> Any:
    answer = chat.with_raw_response.create(
        **GREEDY, user="me", store=False, metadata={"a": "b"}, extra_body={"top_k": 1, "made_up": 1}
    )
    return {
        "text": answer.parse().choices[0].message.content,
        "ignored": answer.headers.get("x-tinyllm-ignored-fields"),
    }


run(
    {
        "plain": plain,
        "stream": stream,
        "usage": usage,
        "helper": helper,
        "stop": stop,
        "several": several,
        "logprobs": logprobs,
        "seed": seed,
        "completions": completions,
        "responses": responses,
        "errors": errors,
        "cancel": cancel,
        "models": models,
        "extras": extras,
    }
)
