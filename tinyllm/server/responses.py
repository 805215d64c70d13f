"""``POST /v1/responses``: text in, text out, and nothing kept."""

from __future__ import annotations

from quart import Blueprint, Response

from tinyllm.server.body import json_response, read_request
from tinyllm.server.chat import splitter_factory
from tinyllm.server.generation import UsageCount
from tinyllm.server.protocol.responses import ResponsesRequest
from tinyllm.server.responses_reply import ResponseDocument, ResponseFrames, response_document
from tinyllm.server.service import current_service
from tinyllm.server.sse import event_response
from tinyllm.server.submit import admit, make_reply, submit_chat

__all__ = ["blueprint"]

blueprint = Blueprint("responses", __name__)


@blueprint.post("/v1/responses")
async def responses() -> Response:
    """Answer a conversation."""
    service = current_service()
    request, sampling, call = await read_request(ResponsesRequest)
    request.check()
    params = request.sampling_params(sampling)
    reply = make_reply(service, call, request, params, "resp_")
    messages = request.messages(service.config.max_messages)
    admit(service, call, request, 1)
    generation = await submit_chat(service, call, request, messages, request.template_arguments(), params)
    stream = generation.streams[0]
    make_splitter = splitter_factory(service, stream)
    document = ResponseDocument(reply, request, stream.params, UsageCount(generation.streams))
    if request.stream:
        frames = ResponseFrames(document, make_splitter)
        return await event_response(generation, frames, service.config.sse_ping_interval)
    [answered] = await generation.results()
    return json_response(response_document(document, answered, make_splitter()))
