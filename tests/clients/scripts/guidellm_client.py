"""guidellm's backend, which asks what its benchmarks ask, but one call at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
from common import LONG, arguments, inner_words, run
from guidellm.backends.openai.http import OpenAIHTTPBackend
from guidellm.schemas import GenerationRequest, GenerationRequestArguments, RequestInfo, UsageMetrics
from guidellm.schemas.backends import OpenAIHTTPBackendArgs

URL, KEY, MODEL = arguments()
SAY = "Say something."
STREAM = {"stream": True}


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Any]:
    backend = OpenAIHTTPBackend(OpenAIHTTPBackendArgs(**{"target": URL, "api_key": KEY, **options}))
    await backend.process_startup()
    try:
        yield backend
    finally:
        await backend.process_shutdown()


def request(text: str = SAY, tokens: int | None = None) -> Any:
    """Return a request; for exactly so many tokens, if they are given."""
    metrics = UsageMetrics(text_tokens=tokens)
    return GenerationRequest(columns={"text_column": [text]}, output_metrics=metrics)


async def answer(text: str = SAY, options: Any = None, history: Any = None, **body: Any) -> Any:
    """Return the answer to one request; ``body`` goes beside what guidellm sends of itself."""
    extras = GenerationRequestArguments(body={"temperature": 0, **body})
    fixed = {"model": MODEL, "stream": False, "max_tokens": 12, "extras": extras}
    async with started(**{**fixed, **(options or {})}) as backend:
        found = [found async for found, _ in backend.resolve(request(text), RequestInfo(), history)]
    return found[-1]


def ask(*around: Any, **body: Any) -> Any:
    return asyncio.run(answer(*around, **body))


def text_of(options: Any = None, **body: Any) -> str:
    text: str = ask(SAY, options, **body).text
    return text


def usage_of(answer: Any) -> list[int]:
    return [answer.input_metrics.text_tokens, answer.output_metrics.text_tokens]


def plain() -> Any:
    found = ask()
    return {"text": found.text, "usage": usage_of(found)}


def stream() -> Any:
    return {"text": text_of(STREAM)}


def usage() -> Any:
    """Counts come with every chunk, as it asks for them; the last ones are those of the whole."""
    return {"usage": usage_of(ask(SAY, STREAM))}


def asynchronous() -> Any:
    async def many() -> list[str]:
        return [found.text for found in await asyncio.gather(*(answer() for _ in range(4)))]

    return {"texts": asyncio.run(many())}


def stop() -> Any:
    text = text_of()
    word = inner_words(text)
    return {
        "expected": text.partition(word)[0],
        "text": text_of(stop=[word]),
        "streamed": text_of(STREAM, stop=word),
    }


def several() -> Any:
    """It keeps the text of one answer, and the counts of all."""
    fields = {"n": 3, "temperature": 1.5, "seed": 1}
    return {"tokens": [usage_of(ask(SAY, options, **fields))[1] for options in ({}, STREAM)]}


def logprobs() -> Any:
    """It has no use for them, and must not trip over them."""
    fields = {"logprobs": True, "top_logprobs": 2}
    return {"text": text_of(STREAM, **fields), "plain": text_of(**fields)}


def seed() -> Any:
    same = [text_of(temperature=1.5, seed=7) for _ in range(2)]
    return {"same": same, "other": text_of(temperature=1.5, seed=8)}


def completions() -> Any:
    path = {"request_format": "/v1/completions"}
    return {"text": text_of(path), "streamed": text_of(path | STREAM)}


def responses() -> Any:
    path = {"request_format": "/v1/responses"}
    found = ask(SAY, path | STREAM)
    return {"text": text_of(path), "streamed": found.text, "usage": usage_of(found)}


def conversation() -> Any:
    first = ask()
    second = ask("Go on.", None, [(request(), first)])
    return {"first": usage_of(first)[0], "second": usage_of(second)[0]}


def errors() -> Any:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    calls: dict[str, Any] = {
        "value": lambda: ask(temperature=-1),
        "tools": lambda: ask(tools=[tool]),
        "length": lambda: ask("x " * 9000),
        "model": lambda: ask(SAY, {"model": "gpt-9"}),
        "key": lambda: ask(SAY, {"api_key": "sk-not-the-right-one"}),
        "stream": lambda: ask(SAY, STREAM, top_p=7),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "nothing was raised"
        except httpx.HTTPStatusError as error:
            found[name] = error.response.status_code
    return found


def cancel() -> Any:
    """Tasks are cancelled, as where a benchmark's time is up: after the first token, and before an answer."""

    async def give_up(*, stream: bool) -> list[str]:
        seen: list[Any] = []
        async with started(model=MODEL, stream=stream) as backend:
            with suppress(TimeoutError):
                async with asyncio.timeout(None if stream else 1) as limit:
                    async for found, _ in backend.resolve(request(tokens=LONG), RequestInfo()):
                        seen.append(found)
                        if found is None:
                            limit.reschedule(0)
        return [found.text for found in seen if found is not None]

    begun, answers = (asyncio.run(give_up(stream=stream)) for stream in (True, False))
    return {"seen": sum(map(bool, begun)), "plain": "there was an answer" if answers else "gave up"}


def models() -> Any:
    async def look() -> Any:
        async with started() as backend:
            await backend.validate()
            return {"listed": await backend.available_models(), "default": await backend.default_model()}

    return asyncio.run(look())


run(
    {
        "plain": plain,
        "stream": stream,
        "usage": usage,
        "asynchronous": asynchronous,
        "stop": stop,
        "several": several,
        "logprobs": logprobs,
        "seed": seed,
        "completions": completions,
        "responses": responses,
        "conversation": conversation,
        "errors": errors,
        "cancel": cancel,
        "models": models,
    }
)
