"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from quart import Blueprint, Response

from tinyllm.errors import InvalidRequestError
from tinyllm.server.body import json_response, large_response, read_request
from tinyllm.server.completion_reply import CompletionFrames, Echo, completion
from tinyllm.server.protocol.completions import CompletionRequest, Prompt
from tinyllm.server.service import Service, current_service
from tinyllm.server.sse import event_response
from tinyllm.server.submit import admit, make_reply, submit_prompts

if TYPE_CHECKING:
    from tinyllm.engine.async_engine import AsyncEngine

__all__ = ["blueprint"]

blueprint = Blueprint("completions", __name__)


@blueprint.post("/v1/completions")
async def completions() -> Response:
    """Go on with prompts."""
    service = current_service()
    request, sampling, call = await read_request(CompletionRequest)
    request.check()
    params = request.sampling_params(sampling)
    prompt_logprobs = sampling.get("prompt_logprobs") is not None
    if request.stream and prompt_logprobs:
        raise InvalidRequestError("prompt_logprobs does not go with stream: true", param="prompt_logprobs")
    reply = make_reply(service, call, request, params, "cmpl-")
    given = request.prompts(service.config.max_prompts)
    _check_room(service.engine, len(given), params.n)
    admit(service, call, request, params.n * len(given))
    prompts = await _encoded(service, request, given)
    engine = service.engine
    generation = await submit_prompts(service, call, request, prompts, params)
    echoes = [await _echo(engine, prompt) for prompt in prompts] if request.echo else None
    if request.stream:
        frames = CompletionFrames(reply, generation, echoes, engine.tokenizer)
        return await event_response(generation, frames, service.config.sse_ping_interval)
    answered = await generation.results()
    make = partial(
        completion, reply, generation, answered, echoes, engine.tokenizer, prompt_logprobs=prompt_logprobs
    )
    return await large_response(make) if params.wants_logprobs else json_response(make())


def _check_room(engine: AsyncEngine, prompts: int, n: int) -> None:
    """Refuse what can never be accepted; a 429 would have its client try for ever."""
    most = engine.config.max_num_seqs + engine.config.max_waiting_requests
    if prompts > 1 and prompts * n > most:
        message = (
            f"{prompts} prompts with n {n} ask for {prompts * n} answers; the engine takes {most} at once "
            "(max_num_seqs + max_waiting_requests): ask for fewer"
        )
        raise InvalidRequestError(message, param="prompt")


async def _encoded(
    service: Service, request: CompletionRequest, prompts: Sequence[Prompt]
) -> Sequence[Prompt]:
    """Return the prompts; as token ids where the request says how to make or cut them."""
    if not request.add_special_tokens:
        prompts = [
            await service.engine.encode(prompt, add_special_tokens=False)
            if isinstance(prompt, str)
            else prompt
            for prompt in prompts
        ]
    if request.truncate_prompt_tokens is not None:
        ids = [await service.engine.encode(p) if isinstance(p, str) else p for p in prompts]
        prompts = [one[-request.truncate_prompt_tokens :] for one in ids]
    return prompts


async def _echo(engine: AsyncEngine, prompt: Prompt) -> Echo:
    """Return what stands before the answers."""
    if engine.tokenizer is None:
        raise InvalidRequestError("echo needs a tokenizer, and this model has none", param="echo")
    if isinstance(prompt, str):
        return Echo(prompt, is_given=True)
    return Echo(await engine.decode(prompt), is_given=False)
