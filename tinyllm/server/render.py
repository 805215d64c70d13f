"""``POST /v1/chat/completions/render``: the rehearsal of a chat request, which shows its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from quart import Blueprint, Response

from tinyllm.engine.prompt import RenderedPrompt
from tinyllm.server.body import large_response, read_request
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.service import current_service
from tinyllm.server.submit import render_chat
from tinyllm.text.detokenizer import IncrementalDetokenizer
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["blueprint"]

blueprint = Blueprint("render", __name__)


@blueprint.post("/v1/chat/completions/render")
async def render() -> Response:
    """Show the exact prompt, as text and token ids, that a chat request would give to the model."""
    service = current_service()
    request, _, call = await read_request(ChatRequest)
    service.check_model(request.model)
    messages, arguments = request.chat(service.config.max_messages)
    engine = service.engine
    rendered = await render_chat(service, call, messages, arguments)
    if request.truncate_prompt_tokens is not None:
        ids = rendered.token_ids[-request.truncate_prompt_tokens :]
        rendered = RenderedPrompt(await engine.decode(ids, skip_special_tokens=False), ids)
    return await large_response(partial(_body, rendered, engine.tokenizer, engine.info.max_model_len))


def _body(rendered: RenderedPrompt, tokenizer: Tokenizer | None, max_model_len: int) -> dict[str, Any]:
    ids = list(rendered.token_ids)
    return {
        "prompt": rendered.text,
        "count": len(ids),
        "max_model_len": max_model_len,
        "prompt_token_ids": ids,
        "tokens": _tokens(tokenizer, ids),
    }


def _tokens(tokenizer: Tokenizer | None, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return each token's text, and whether it is special; together the texts are the prompt."""
    if tokenizer is None or not ids:
        return []
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)
    texts = [detokenizer.push(each) for each in ids]
    texts.append(texts.pop() + detokenizer.flush())
    special = tokenizer.special_token_ids
    return [{"text": text, "special": each in special} for text, each in zip(texts, ids, strict=True)]
