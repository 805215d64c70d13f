"""LiteLLM, by both of its names for a server like this: ``openai/`` and ``hosted_vllm/``."""

from __future__ import annotations

import asyncio
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it looks on the network for prices

import litellm
from common import HI, LONG, arguments, inner_words, run

URL, KEY, MODEL = arguments()
litellm.suppress_debug_info = True
litellm.telemetry = False
GREEDY: dict[str, Any] = {
    "api_base": f"{URL}/v1",
    "api_key": KEY,
    "messages": HI,
    "temperature": 0,
    "max_tokens": 12,
    "num_retries": 0,
    "max_retries": 0,
}


def ask(provider: str = "openai", **fields: Any) -> Any:
    return litellm.completion(model=f"{provider}/{MODEL}", **{**GREEDY, **fields})


def text_of(chunks: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def plain() -> Any:
    answer = ask()
    usage = answer.usage
    return {
        "text": answer.choices[0].message.content,
        "finish": answer.choices[0].finish_reason,
        "usage": [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
        "id": answer.id,
    }


def hosted_vllm() -> Any:
    answer = ask("hosted_vllm", extra_body={"top_k": 1, "repetition_penalty": 1.0})
    return {"text": answer.choices[0].message.content, "streamed": text_of(ask("hosted_vllm", stream=True))}


def stream() -> Any:
    chunks = list(ask(stream=True))
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason]
    return {"text": text_of(chunks), "finishes": finishes, "ids": len({chunk.id for chunk in chunks})}


def usage() -> Any:
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    counts = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HI)
    return {
        "usage": [[count.prompt_tokens, count.completion_tokens, count.total_tokens] for count in counts],
        "rebuilt": rebuilt.choices[0].message.content,
    }


def asynchronous() -> Any:
    async def many() -> list[str]:
        calls = (litellm.acompletion(model=f"openai/{MODEL}", **GREEDY) for _ in range(4))
        return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    return {"texts": asyncio.run(many())}


def stop() -> Any:
    text = ask().choices[0].message.content
    word = inner_words(text)
    return {
        "expected": text.partition(word)[0],
        "text": ask(stop=[word]).choices[0].message.content,
        "streamed": text_of(ask(stop=word, stream=True)),
    }


def several() -> Any:
    answer = ask(n=2, temperature=1.5)
    return {"texts": [choice.message.content for choice in answer.choices]}


def logprobs() -> Any:
    entries = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    chunks = list(ask(logprobs=True, top_logprobs=2, stream=True))
    parts = [chunk.choices[0].logprobs for chunk in chunks if getattr(chunk.choices[0], "logprobs", None)]
    tokens = [entry["token"] for part in parts for entry in dict(part)["content"] or ()]
    return {
        "count": len(entries),
        "tops": sorted({len(entry.top_logprobs) for entry in entries}),
        "streamed_alike": tokens == [entry.token for entry in entries],
        "finishes": [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason],
    }


def seed() -> Any:
    same = [ask(temperature=1.5, seed=7).choices[0].message.content for _ in range(2)]
    return {"same": same, "other": ask(temperature=1.5, seed=8).choices[0].message.content}


def completions() -> Any:
    fields = {name: value for name, value in GREEDY.items() if name != "messages"}
    call: dict[str, Any] = {**fields, "model": f"text-completion-openai/{MODEL}", "prompt": "One"}
    pieces = litellm.text_completion(**call, stream=True)
    return {
        "text": litellm.text_completion(**call).choices[0].text,
        "streamed": "".join(chunk.choices[0].text or "" for chunk in pieces if chunk.choices),
    }


def errors() -> Any:
    calls: dict[str, Any] = {
        "value": lambda: ask(top_p=7),
        "length": lambda: ask(messages=[{"role": "user", "content": "x " * 9000}]),
        "key": lambda: ask(api_key="sk-not-the-right-one"),
        "tools": lambda: ask(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
        "model": lambda: litellm.completion(model="openai/gpt-9x", **GREEDY),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "nothing was raised"
        except Exception as error:
            found[name] = [type(error).__name__, getattr(error, "status_code", None)]
    return found


def cancel() -> Any:
    answer = ask(stream=True, max_tokens=LONG, extra_body={"ignore_eos": True})
    seen = [next(answer) for _ in range(3)]
    answer.completion_stream.close()
    return {"seen": len(seen)}


def models() -> Any:
    os.environ.update(HOSTED_VLLM_API_BASE=f"{URL}/v1", HOSTED_VLLM_API_KEY=KEY)
    listed = litellm.get_valid_models(check_provider_endpoint=True, custom_llm_provider="hosted_vllm")
    return {"listed": listed}


run(
    {
        "plain": plain,
        "hosted_vllm": hosted_vllm,
        "stream": stream,
        "usage": usage,
        "asynchronous": asynchronous,
        "stop": stop,
        "several": several,
        "logprobs": logprobs,
        "seed": seed,
        "completions": completions,
        "errors": errors,
        "cancel": cancel,
        "models": models,
    }
)
