"""From a checked request to the engine: what chat, completions and responses do alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinyllm.engine.prompt import RenderedPrompt
from tinyllm.engine.validation import MAX_PRIORITY
from tinyllm.errors import InvalidRequestError, TinyLLMError
from tinyllm.params import SamplingParams
from tinyllm.server.context import Call
from tinyllm.server.generation import Generation
from tinyllm.server.protocol.body import listed
from tinyllm.server.protocol.completions import Prompt
from tinyllm.server.protocol.generate import GenerateRequest
from tinyllm.server.reply import Reply
from tinyllm.server.service import Service
from tinyllm.text.chat_template import RESERVED_VARIABLES

__all__ = ["admit", "make_reply", "render_chat", "submit_chat", "submit_prompts"]


def make_reply(
    service: Service, call: Call, request: GenerateRequest, params: SamplingParams, prefix: str
) -> Reply:
    """Return the fixed part of the response. Raises a 404 if the model is another one."""
    options = request.stream_options
    if request.request_id is not None:
        call.request_id = request.request_id
    return Reply(
        id=f"{prefix}{call.request_id}",
        created=call.created,
        model=service.check_model(request.model),
        fingerprint=service.fingerprint,
        n=params.n,
        include_usage=service.config.enable_force_include_usage or bool(options and options.include_usage),
        continuous_usage=bool(options and options.continuous_usage_stats),
        with_logprobs=params.logprobs is not None,
        token_ids=request.return_token_ids,
        tokens_as_ids=request.return_tokens_as_token_ids,
    )


def admit(service: Service, call: Call, request: GenerateRequest, answers: int) -> None:
    """Count a request against its API key's quota, until the call ends. Raises a 429 if that is used up."""
    if request.priority < 0 and service.quotas.several:
        raise InvalidRequestError(
            "priority cannot be below 0 where there are several API keys: it would go before theirs",
            param="priority",
        )
    share = service.quotas.enter(call.caller, answers)
    call.turn = share.turn
    call.at_end.append(lambda: share.leave(sum(stream.num_tokens for stream in call.streams)))


async def submit_prompts(
    service: Service, call: Call, request: GenerateRequest, prompts: Sequence[Prompt], params: SamplingParams
) -> Generation:
    """Give prompts to the engine. Raises what is wrong with any of them; then none of them runs on."""
    call.field_names = request.names()
    options = _options(service, call, request)
    service.register(call)
    try:
        for prompt in prompts:
            request_id = service.engine_request_id(call)
            call.streams.append(service.engine.generate(prompt, params, request_id=request_id, **options))
    except TinyLLMError:
        for stream in call.streams:
            stream.close()
        raise
    return Generation(call, call.streams)


async def submit_chat(
    service: Service,
    call: Call,
    request: GenerateRequest,
    messages: Sequence[Mapping[str, Any]],
    template_arguments: Mapping[str, Any],
    params: SamplingParams,
) -> Generation:
    """Give a conversation to the engine."""
    call.field_names = request.names()
    if request.truncate_prompt_tokens is not None:
        rendered = await render_chat(service, call, messages, template_arguments)
        ids = list(rendered.token_ids)[-request.truncate_prompt_tokens :]
        return await submit_prompts(service, call, request, [ids], params)
    options = _options(service, call, request)
    read = await _those_read(service, call, template_arguments)
    service.register(call)
    stream = service.engine.chat(
        messages,
        params,
        chat_template_kwargs=read,
        special_tokens_in_messages=service.config.special_tokens_in_messages,
        request_id=service.engine_request_id(call),
        **options,
    )
    call.streams.append(stream)
    return Generation(call, call.streams)


async def render_chat(
    service: Service,
    call: Call,
    messages: Sequence[Mapping[str, Any]],
    template_arguments: Mapping[str, Any],
) -> RenderedPrompt:
    """Return the prompt of a conversation."""
    return await service.engine.render_chat(
        messages,
        chat_template_kwargs=await _those_read(service, call, template_arguments),
        special_tokens_in_messages=service.config.special_tokens_in_messages,
    )


async def _those_read(service: Service, call: Call, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out, and note as ignored, variables that this model's chat template does not read."""
    asked = arguments.keys() - RESERVED_VARIABLES
    unread_names = asked - await service.engine.template_reads(asked)
    unread = {name: _field_of_variable(call, name) for name in arguments if name in unread_names}
    if unread and service.config.strict_fields:
        given = next(iter(unread.values()))[:80]
        raise InvalidRequestError(f"{given}: this model's chat template does not read it", param=given)
    call.ignored_fields += listed(list(unread.values()))
    return {name: value for name, value in arguments.items() if name not in unread}


def _field_of_variable(call: Call, name: str) -> str:
    """Return what a client calls a template's variable."""
    if name == "reasoning_effort":
        return call.field_names.get(name, name)
    return f"chat_template_kwargs.{name}"


def _options(service: Service, call: Call, request: GenerateRequest) -> dict[str, Any]:
    config = service.config
    return {
        "priority": min(request.priority + call.turn, max(request.priority, MAX_PRIORITY)),
        "timeout": config.request_timeout,
        "queue_timeout": config.queue_timeout,
        "cache_salt": cache_salt(service, call, request.cache_salt),
    }


def cache_salt(service: Service, call: Call, own: str) -> str:
    """Return the namespace of cached prefixes: the key's, and within it the one the request names."""
    if service.config.prefix_cache == "process-global":
        return own
    return f"{call.caller.name}/{own}"
