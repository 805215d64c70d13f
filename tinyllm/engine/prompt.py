"""Prompts made ready on the caller's side: text to token ids, and a checked request to a `Submission`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tinyllm.engine.loaded import LoadedModel
from tinyllm.engine.messages import RequestOptions, Submission
from tinyllm.engine.validation import check_prompt_ids, check_text, output_limit
from tinyllm.errors import ChatTemplateError, InvalidRequestError
from tinyllm.params import SamplingParams

__all__ = ["RenderedPrompt", "decode_ids", "encode_prompt", "make_submission", "prompt_ids", "render_prompt"]

_OWN_VARIABLES = frozenset({"self", "messages", "tools"})


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A conversation as the model sees it."""

    text: str
    token_ids: tuple[int, ...]


def encode_prompt(model: LoadedModel, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Return the token ids of a prompt."""
    text = check_text(text, "prompt")
    if model.tokenizer is None:
        raise InvalidRequestError(
            "this model has no tokenizer, so the prompt must be a list of token ids", param="prompt"
        )
    return model.tokenizer.encode(text, add_special_tokens=add_special_tokens)


def prompt_ids(model: LoadedModel, prompt: str | Sequence[int]) -> Sequence[int]:
    """Return the token ids of a prompt that may be token ids already."""
    return encode_prompt(model, prompt) if isinstance(prompt, str) else prompt


def decode_ids(model: LoadedModel, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
    """Return the text of token ids."""
    if model.tokenizer is None:
        raise InvalidRequestError("this model has no tokenizer", param="tokens")
    return model.tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)


def render_prompt(
    model: LoadedModel,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any] | None,
    special_tokens_in_messages: bool = True,
) -> RenderedPrompt:
    """Apply the model's chat template, and encode what it gives. May take long: see `TextWorker`."""
    if model.tokenizer is None or model.user_text is None or model.chat_templates is None:
        raise ChatTemplateError("this model has no chat template: give the prompt as text", param="messages")
    if template_kwargs is not None and not isinstance(template_kwargs, Mapping):
        raise InvalidRequestError(
            "chat_template_kwargs must map names to values", param="chat_template_kwargs"
        )
    variables = dict(template_kwargs or {})
    if any(not isinstance(name, str) or name in _OWN_VARIABLES for name in variables):
        raise InvalidRequestError(
            "chat_template_kwargs has a name that is no string, or that is set by other means "
            f"({', '.join(sorted(_OWN_VARIABLES))})",
            param="chat_template_kwargs",
        )
    if tools and not model.chat_templates.uses("tools"):
        raise InvalidRequestError("tools: this model's chat template has no place for tools", param="tools")
    mark = None if special_tokens_in_messages else model.user_text.mark
    text = model.chat_templates.render(messages, mark, tools=tools, **variables)
    check_text(text, "messages")
    if special_tokens_in_messages:
        return RenderedPrompt(text, tuple(model.tokenizer.encode_chat(text)))
    text, ids = model.user_text.encode(text)
    return RenderedPrompt(text, tuple(ids))


def make_submission(model: LoadedModel, prompt: Sequence[int], options: RequestOptions) -> Submission:
    """Check the prompt against the model's context, and put the request together."""
    ids = check_prompt_ids(prompt, model.info)
    params, arrival = options.params, options.arrival_time
    return Submission(
        request_id=options.request_id,
        prompt_token_ids=ids,
        params=params,
        max_tokens=output_limit(len(ids), params, model.info),
        arrival_time=arrival,
        priority=options.priority,
        deadline=None if options.timeout is None else arrival + options.timeout,
        queue_deadline=None if options.queue_timeout is None else arrival + options.queue_timeout,
        cache_salt=options.cache_salt,
        bad_word_token_ids=_bad_words(model, params),
        credit=options.credit,
    )


def _bad_words(model: LoadedModel, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each bad word as it begins a text, and as it follows a space."""
    if model.tokenizer is None:
        return ()
    found: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        for text in (word, " " + word.lstrip()):
            ids = tuple(model.tokenizer.encode(text, add_special_tokens=False))
            if ids:
                found[ids] = None
    return tuple(found)
