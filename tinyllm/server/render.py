"""``POST /v1/chat/completions/render``: the rehearsal of a chat request, which shows its prompt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from quart import Blueprint, Response

from tinyllm.engine.prompt import RenderedPrompt
from tinyllm.server.body import read_request
from tinyllm.server.json_text import compact_json, quote
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.service import current_service
from tinyllm.server.submit import render_chat
from tinyllm.text.detokenizer import IncrementalDetokenizer
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["blueprint"]

blueprint = Blueprint("render", __name__)

PART: Final = 1 << 17


@blueprint.post("/v1/chat/completions/render")
async def render() -> Response:
    """Show the exact prompt, as text and token ids, that a chat request would give to the model."""
    service = current_service()
    request, _, _ = await read_request(ChatRequest)
    service.check_model(request.model)
    messages, arguments = request.chat(service.config.max_messages)
    engine = service.engine
    rendered = await render_chat(service, messages, arguments)
    body = await asyncio.to_thread(_json, rendered, engine.tokenizer, engine.info.max_model_len)
    response = Response(_parts(body), content_type="application/json")
    response.content_length = len(body)
    return response


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    """Cut a body that may have megabytes, so that others have their turn while it is sent."""
    for start in range(0, len(body), PART):
        yield body[start : start + PART]


def _json(rendered: RenderedPrompt, tokenizer: Tokenizer | None, max_model_len: int) -> bytes:
    """Write the response. A prompt may have hundreds of thousands of tokens.

    Hence on a thread, and the tokens one by one: one call of the JSON library for all of them would hold the
    interpreter's lock, and with it the event loop, for a good part of a second.
    """
    ids = rendered.token_ids
    facts = compact_json({"prompt": rendered.text, "count": len(ids), "max_model_len": max_model_len})
    tokens = ",".join(_tokens(tokenizer, ids))
    listed = ",".join(map(str, ids))
    return f'{facts.removesuffix("}")},"prompt_token_ids":[{listed}],"tokens":[{tokens}]}}'.encode()


def _tokens(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[str]:
    """Return each token's text, and whether it is special; together the texts are the prompt."""
    if tokenizer is None or not ids:
        return []
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    texts = [detokenizer.push(each) for each in ids]
    texts.append(texts.pop() + detokenizer.flush())
    special = tokenizer.special_token_ids
    return [
        f'{{"text":{quote(text)},"special":{"true" if each in special else "false"}}}'
        for text, each in zip(texts, ids, strict=True)
    ]
