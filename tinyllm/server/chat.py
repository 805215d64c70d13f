"""``POST /v1/chat/completions``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quart import Blueprint, Response

from tinyllm.errors import InvalidRequestError
from tinyllm.server.body import json_response, large_response, read_request
from tinyllm.server.chat_reply import ChatFrames, chat_completion
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.reasoning import OPEN, ReasoningSplitter, SplitterFactory
from tinyllm.server.service import Service, current_service
from tinyllm.server.sse import event_response
from tinyllm.server.submit import admit, make_reply, submit_chat

if TYPE_CHECKING:
    from tinyllm.engine.stream import TokenStream

__all__ = ["blueprint", "splitter_factory"]

blueprint = Blueprint("chat", __name__)

PROMPT_END = 8
"""Tokens at the end of a prompt that are looked at for an open tag."""


@blueprint.post("/v1/chat/completions")
async def chat_completions() -> Response:
    """Answer a conversation."""
    service = current_service()
    request, sampling, call = await read_request(ChatRequest)
    request.check()
    params = request.sampling_params(sampling)
    if request.stream and params.prompt_logprobs is not None:
        raise InvalidRequestError("prompt_logprobs does not go with stream: true", param="prompt_logprobs")
    reply = make_reply(service, call, request, params, "chatcmpl-")
    messages, arguments = request.chat(service.config.max_messages)
    admit(service, call, request, params.n)
    generation = await submit_chat(service, call, request, messages, arguments, params)
    make_splitter = splitter_factory(service, generation.streams[0], request.begun())
    shown = request.include_reasoning
    if request.stream:
        frames = ChatFrames(reply, generation, make_splitter, reasoning=shown)
        return await event_response(generation, frames, service.config.sse_ping_interval)
    [answered] = await generation.results()
    make = partial(chat_completion, reply, generation, answered, make_splitter, reasoning=shown)
    return await large_response(make) if params.wants_logprobs else json_response(make())


def splitter_factory(service: Service, stream: TokenStream, begun: str = "") -> SplitterFactory:
    """Return what makes splitters for the answers of a stream, once its prompt is known.

    ``begun`` is the beginning of the answer, if the request itself has it.
    """

    def make() -> ReasoningSplitter | None:
        engine = service.loaded_engine
        tokenizer = None if engine is None else engine.tokenizer
        if tokenizer is None or not service.thinks:
            return None
        end = tokenizer.decode(stream.prompt_token_ids[-PROMPT_END:], skip_special_tokens=False)
        return ReasoningSplitter(inside=not begun and end.rstrip().endswith(OPEN), begun=begun)

    return make
