"""LangChain's ChatOpenAI and OpenAI, pointed at a server of one's own."""

from __future__ import annotations

import asyncio
from typing import Any

from common import LONG, arguments, inner_words, run
from langchain_core.messages import AIMessageChunk, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

URL, KEY, MODEL = arguments()
SAY = "Say something."


def model(**options: Any) -> ChatOpenAI:
    fields = {"temperature": 0, "max_tokens": 12, "max_retries": 0, **options}
    return ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, **fields)


def joined(chunks: Any) -> AIMessageChunk:
    chunks = list(chunks)
    whole: AIMessageChunk = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    return whole


def plain() -> Any:
    answer = model().invoke(SAY)
    return {
        "text": answer.content,
        "finish": answer.response_metadata["finish_reason"],
        "model": answer.response_metadata["model_name"],
        "fingerprint": answer.response_metadata["system_fingerprint"],
        "usage": [answer.usage_metadata[f"{kind}_tokens"] for kind in ("input", "output", "total")],
        "id": answer.id,
    }


def stream() -> Any:
    whole = joined(model().stream(SAY))
    return {"text": whole.content, "finish": whole.response_metadata["finish_reason"]}


def usage() -> Any:
    whole = joined(model(stream_usage=True).stream(SAY))
    return {"usage": [whole.usage_metadata[f"{kind}_tokens"] for kind in ("input", "output", "total")]}


def asynchronous() -> Any:
    async def many() -> list[str]:
        answers = await asyncio.gather(*(model().ainvoke(SAY) for _ in range(4)))
        return [str(answer.content) for answer in answers]

    return {"texts": asyncio.run(many())}


def stop() -> Any:
    text = str(model().invoke(SAY).content)
    word = inner_words(text)
    bound = model().bind(stop=[word])
    return {
        "expected": text.partition(word)[0],
        "text": bound.invoke(SAY).content,
        "streamed": joined(bound.stream(SAY)).content,
    }


def several() -> Any:
    result = model(n=2, temperature=1.5).generate([[HumanMessage(SAY)]])
    return {"texts": [generation.text for generation in result.generations[0]]}


def logprobs() -> Any:
    fields: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    whole = model(**fields).invoke(SAY)
    streamed = joined(model(**fields).stream(SAY))
    entries = whole.response_metadata["logprobs"]["content"]
    parts = streamed.response_metadata["logprobs"]["content"]
    return {
        "count": len(entries),
        "tops": sorted({len(entry["top_logprobs"]) for entry in entries}),
        "streamed_alike": [entry["token"] for entry in parts] == [entry["token"] for entry in entries],
    }


def seed() -> Any:
    same = [model(temperature=1.5, seed=7).invoke(SAY).content for _ in range(2)]
    return {"same": same, "other": model(temperature=1.5, seed=8).invoke(SAY).content}


def parts() -> Any:
    """Messages whose content is a list, with a system message before them."""
    content = [{"type": "text", "text": "Say"}, {"type": "text", "text": "something."}]
    answer = model().invoke([SystemMessage("Be brief."), HumanMessage(content)])
    return {"finish": answer.response_metadata["finish_reason"], "text": answer.content}


def completions() -> Any:
    llm = OpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, temperature=0, max_tokens=6, max_retries=0)
    return {"text": llm.invoke("One"), "streamed": "".join(llm.stream("One"))}


def errors() -> Any:
    calls: dict[str, Any] = {
        "value": lambda: model(top_p=7).invoke(SAY),
        "length": lambda: model().invoke("x " * 9000),
        "tools": lambda: (
            model().bind_tools([{"name": "f", "description": "f", "parameters": {}}]).invoke(SAY)
        ),
        "stream": lambda: list(model(top_p=7).stream(SAY)),
    }
    found: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = "nothing was raised"
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            found[name] = [
                "BadRequestError" in kinds,
                "ContextOverflowError" in kinds,
                getattr(error, "status_code", None),
            ]
    return found


def cancel() -> Any:
    chunks = model(max_tokens=LONG, extra_body={"ignore_eos": True}).stream(SAY)
    seen = [next(chunks) for _ in range(3)]
    chunks.close()
    return {"seen": len(seen)}


def models() -> Any:
    return {"listed": [entry.id for entry in model().root_client.models.list()]}


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
        "parts": parts,
        "completions": completions,
        "errors": errors,
        "cancel": cancel,
        "models": models,
    }
)
