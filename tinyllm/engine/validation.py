"""The one check of a request, before anything is accepted. HTTP goes through it as well."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from tinyllm.config import EngineConfig
from tinyllm.engine.loaded import EngineInfo, LoadedModel
from tinyllm.engine.messages import RequestOptions
from tinyllm.errors import ContextLengthError, InvalidRequestError
from tinyllm.params import SamplingParams
from tinyllm.runner.rng import random_seed

__all__ = [
    "MAX_CACHE_SALT_LENGTH",
    "MAX_PRIORITY",
    "MAX_REQUEST_ID_LENGTH",
    "check_options",
    "check_params",
    "check_prompt_ids",
    "check_text",
    "check_token_ids",
    "output_limit",
]

MAX_REQUEST_ID_LENGTH = 256
MAX_CACHE_SALT_LENGTH = 1024
MAX_PRIORITY = 2**31 - 1


def check_text(text: object, param: str) -> str:
    """Return ``text``, a string without lone surrogates (which have no bytes, so no tokens)."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"{param} must be a string or a list of token ids", param=param)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{param} has a lone surrogate at character {error.start}: it is not valid Unicode", param=param
        ) from None
    return text


def check_token_ids(ids: Collection[object], vocab_size: int, param: str) -> None:
    """Refuse what is not a token id of the model."""
    for token_id in ids:
        if type(token_id) is not int:
            raise InvalidRequestError(f"{param} must hold integers only", param=param)
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(
                f"{param} has token id {token_id}; the model's ids go from 0 to {vocab_size - 1}", param=param
            )


def check_prompt_ids(prompt: Sequence[int], info: EngineInfo) -> tuple[int, ...]:
    """Return the prompt's token ids, at least one and at most what fits beside one new token."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise InvalidRequestError("prompt must be a string or a list of token ids", param="prompt")
    if not prompt:
        raise InvalidRequestError("prompt is empty: give at least one token", param="prompt")
    if len(prompt) > info.max_model_len:
        raise _too_long(len(prompt), None, info)
    check_token_ids(prompt, info.vocab_size, "prompt")
    return tuple(prompt)


def output_limit(num_prompt_tokens: int, params: SamplingParams, info: EngineInfo) -> int:
    """Return how many tokens an answer may have: ``max_tokens``, or the rest of the context."""
    room = info.max_model_len - num_prompt_tokens
    if params.max_tokens is not None:
        if params.max_tokens > room:
            raise _too_long(num_prompt_tokens, params.max_tokens, info)
        return params.max_tokens
    if room < 1:
        raise _too_long(num_prompt_tokens, None, info)
    if params.min_tokens > room:
        raise InvalidRequestError(
            f"min_tokens ({params.min_tokens}) does not fit: this model's maximum context length is "
            f"{info.max_model_len} tokens and the prompt has {num_prompt_tokens}",
            param="min_tokens",
        )
    return room


def check_params(params: object, model: LoadedModel) -> SamplingParams:
    """Return the params, each of whose token ids the model has, with every default filled in."""
    if params is None:
        params = SamplingParams()
    if not isinstance(params, SamplingParams):
        raise InvalidRequestError("params must be a SamplingParams", param="params")
    params = SamplingParams(**vars(params))  # again: model_copy and model_construct check nothing
    vocab_size = model.info.vocab_size
    check_token_ids(params.logit_bias or (), vocab_size, "logit_bias")
    check_token_ids(params.allowed_token_ids, vocab_size, "allowed_token_ids")
    check_token_ids(params.stop_token_ids, vocab_size, "stop_token_ids")
    for param in ("stop", "bad_words"):
        texts = getattr(params, param)
        if texts and model.tokenizer is None:
            raise InvalidRequestError(f"{param} needs a tokenizer, and this model has none", param=param)
        for text in texts:
            check_text(text, param)
    for processor in params.logits_processors:
        if not callable(processor):
            raise InvalidRequestError("logits_processors must be callables", param="logits_processors")
    resolved = params.resolved(model.sampling_defaults)
    if resolved.seed is None and not resolved.is_greedy:
        resolved = resolved.model_copy(update={"seed": random_seed()})  # so that the result can be had again
    return resolved


def check_options(config: EngineConfig, options: RequestOptions) -> None:
    """Check what comes with a request besides prompt and params."""
    if not isinstance(options.request_id, str) or not 0 < len(options.request_id) <= MAX_REQUEST_ID_LENGTH:
        raise InvalidRequestError(
            f"request_id must be a string of 1 to {MAX_REQUEST_ID_LENGTH} characters", param="request_id"
        )
    check_text(options.request_id, "request_id")
    if type(options.priority) not in (int, float) or not abs(options.priority) <= MAX_PRIORITY:
        raise InvalidRequestError(
            f"priority must be a number from {-MAX_PRIORITY} to {MAX_PRIORITY}", param="priority"
        )
    _check_seconds("timeout", options.timeout)
    _check_seconds("queue_timeout", options.queue_timeout)
    if not isinstance(options.cache_salt, str) or len(options.cache_salt) > MAX_CACHE_SALT_LENGTH:
        raise InvalidRequestError(
            f"cache_salt must be a string of at most {MAX_CACHE_SALT_LENGTH} characters", param="cache_salt"
        )
    check_text(options.cache_salt, "cache_salt")
    most = config.max_num_seqs + config.max_waiting_requests
    if options.params.n > most:
        raise InvalidRequestError(
            f"n is {options.params.n}, and the engine takes {most} answers at once "
            "(max_num_seqs + max_waiting_requests)",
            param="n",
        )


def _check_seconds(param: str, seconds: object) -> None:
    if seconds is None:
        return
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= sys.float_info.max:  # type: ignore[operator]  # False for NaN
        raise InvalidRequestError(f"{param} must be a positive number of seconds", param=param)


def _too_long(num_prompt_tokens: int, max_tokens: int | None, info: EngineInfo) -> ContextLengthError:
    limit = f"this model's maximum context length is {info.max_model_len} tokens"
    if max_tokens is None:
        return ContextLengthError(
            f"prompt is too long: {limit}, and it has {num_prompt_tokens}, which leaves none for an answer",
            param="prompt",
        )
    return ContextLengthError(
        f"{limit}, and {num_prompt_tokens + max_tokens} were asked for ({num_prompt_tokens} in the prompt, "
        f"{max_tokens} for the answer): shorten the prompt or ask for less",
        param="max_tokens" if num_prompt_tokens < info.max_model_len else "prompt",
    )
