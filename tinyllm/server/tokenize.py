"""``POST /tokenize`` and ``/detokenize``: what a text is to the model, and the other way round."""

from __future__ import annotations

from typing import Any

from quart import Blueprint, Response

from tinyllm.server.body import json_response, large_response, read_request
from tinyllm.server.context import Call
from tinyllm.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from tinyllm.server.service import Service, current_service
from tinyllm.server.submit import render_chat

__all__ = ["blueprint"]

blueprint = Blueprint("tokenize", __name__)


@blueprint.post("/tokenize")
async def tokenize() -> Response:
    """Return the token ids of a text or of a conversation."""
    service = current_service()
    request, _, call = await read_request(TokenizeRequest)
    request.check()
    service.check_model(request.model)
    ids = await _token_ids(service, call, request)
    tokenizer = service.engine.tokenizer if request.return_token_strs else None
    max_model_len = service.engine.info.max_model_len

    def body() -> dict[str, Any]:
        strings = None if tokenizer is None else [tokenizer.token(token_id) for token_id in ids]
        return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": strings}

    return await large_response(body)


@blueprint.post("/detokenize")
async def detokenize() -> Response:
    """Return the text of token ids."""
    service = current_service()
    request, _, _ = await read_request(DetokenizeRequest)
    service.check_model(request.model)
    text = await service.engine.decode(request.tokens, skip_special_tokens=request.skip_special_tokens)
    return json_response({"prompt": text})


async def _token_ids(service: Service, call: Call, request: TokenizeRequest) -> list[int]:
    if request.prompt is not None:
        return await service.engine.encode(request.prompt, add_special_tokens=request.add_special_tokens)
    messages, arguments = request.chat(service.config.max_messages)
    rendered = await render_chat(service, call, messages, arguments)
    return list(rendered.token_ids)
