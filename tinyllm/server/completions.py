"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence

from quart import Blueprint, Response

from tinyllm.errors import InvalidRequestError
from tinyllm.server.body import json_response, read_request
from tinyllm.server.completion_reply import CompletionFrames, Echo, completion
from tinyllm.server.protocol.completions import CompletionRequest, Prompt
from tinyllm.server.service import Service, current_service
from tinyllm.server.sse import event_response
from tinyllm.server.submit import encode_text, make_reply, submit_prompts

__all__ = ["blueprint"]

blueprint = Blueprint("completions", __name__)


@blueprint.post("/v1/completions")
async def completions() -> Response:
    """Go on with prompts."""
    service = current_service()
    request, sampling, call = await read_request(CompletionRequest)
    request.check()
    params = request.sampling_params(sampling)
    if request.stream and params.prompt_logprobs is not None and not request.echo:
        raise InvalidRequestError("prompt_logprobs does not go with stream: true", param="prompt_logprobs")
    reply = make_reply(service, call, request, params, "cmpl-")
    prompts = await _prompts(service, request)
    generation = await submit_prompts(service, call, request, prompts, params)
    echoes = [_echo(service, prompt, params.prompt_logprobs) for prompt in prompts] if request.echo else None
    if request.stream:
        frames = CompletionFrames(reply, generation, echoes)
        return await event_response(generation, frames, service.config.sse_ping_interval)
    return json_response(completion(reply, generation, await generation.results(), echoes))


async def _prompts(service: Service, request: CompletionRequest) -> Sequence[Prompt]:
    """Return the prompts; as token ids where the request says how to make or cut them."""
    prompts: Sequence[Prompt] = request.prompts(service.config.max_prompts)
    if not request.add_special_tokens:
        prompts = [
            await encode_text(service.engine, prompt, add_special_tokens=False)
            if isinstance(prompt, str)
            else prompt
            for prompt in prompts
        ]
    if request.truncate_prompt_tokens is not None:
        ids = [await encode_text(service.engine, p) if isinstance(p, str) else p for p in prompts]
        prompts = [one[-request.truncate_prompt_tokens :] for one in ids]
    return prompts


def _echo(service: Service, prompt: Prompt, prompt_logprobs: int | None) -> Echo:
    tokenizer = service.engine.tokenizer
    if tokenizer is None:
        raise InvalidRequestError("echo needs a tokenizer, and this model has none", param="echo")
    if isinstance(prompt, str):
        first = tokenizer.token(tokenizer.encode(prompt)[0]) if prompt_logprobs is not None else ""
        return Echo(prompt, first)
    return Echo(tokenizer.decode(prompt, skip_special_tokens=False), tokenizer.token(prompt[0]))
