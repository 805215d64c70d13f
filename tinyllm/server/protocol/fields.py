"""What becomes of request fields that tinyllm does not act on: taken without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tinyllm.errors import InvalidRequestError

__all__ = [
    "HARMLESS_FIELDS",
    "REFUSED_FIELDS",
    "Refusals",
    "UnsupportedFieldError",
    "refuse_unsupported",
    "without_nulls",
]


class UnsupportedFieldError(InvalidRequestError):
    """The field is known, and tinyllm cannot do what it asks for."""

    code = "unsupported_parameter"


HARMLESS_FIELDS: Final = frozenset(
    {
        *("user", "metadata", "store", "service_tier", "safety_identifier", "moderation", "verbosity"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "parallel_tool_calls"),
        "spaces_between_special_tokens",
    }
)
"""They change nothing about the answer, so they are taken and have no effect."""

TOOLS: Final = "tools are not supported yet"
STRUCTURED: Final = "output in a given form is not supported yet; only text is"

Refusals = Mapping[str, tuple[tuple[Any, ...], str]]
"""Field -> the values that ask for nothing, and why others are refused."""

REFUSED_FIELDS: Final[Refusals] = {
    "tools": (([],), TOOLS),
    "tool_choice": (("none", "auto"), TOOLS),
    "functions": (([],), TOOLS),
    "function_call": (("none", "auto"), TOOLS),
    "audio": ((), "audio is not supported"),
    "modalities": ((["text"], []), "only text is supported"),
    "prediction": ((), "predicted outputs are not supported"),
    "web_search_options": ((), "the server does not search the web"),
    "response_format": (({"type": "text"},), STRUCTURED),
    "structured_outputs": ((), STRUCTURED),
    "guided_json": ((), STRUCTURED),
    "guided_regex": ((), STRUCTURED),
    "guided_choice": ((), STRUCTURED),
    "guided_grammar": ((), STRUCTURED),
    "guided_decoding_backend": ((), STRUCTURED),
    "guided_whitespace_pattern": ((), STRUCTURED),
    "use_beam_search": ((False,), "beam search is not supported"),
    "length_penalty": ((1, 1.0), "beam search is not supported"),
    "best_of": ((1,), "best_of is not supported; n gives several answers"),
    "suffix": (("",), "the model does not fill in the middle"),
    "chat_template": (
        (),
        "templates come with the model or the server's --chat-template, not with a request",
    ),
    "documents": (([],), "documents are not supported; put their text into a message"),
    "mm_processor_kwargs": (({},), "only text is supported"),
    "previous_response_id": ((), "no state is kept between requests; send the whole conversation as input"),
    "conversation": ((), "no state is kept between requests; send the whole conversation as input"),
    "background": ((False,), "background responses are not supported"),
    "prompt_embeds": ((), "prompts are text or token ids"),
}


def without_nulls(value: Any) -> Any:
    """Return an object without the fields that are null, which are as good as absent; all else as it is."""
    if not isinstance(value, Mapping):
        return value
    return {name: inner for name, inner in value.items() if inner is not None}


def refuse_unsupported(body: Mapping[str, Any], refusals: Refusals) -> None:
    """Raise `UnsupportedFieldError` for the first field that asks for what tinyllm cannot do."""
    for name, (harmless, reason) in refusals.items():
        if name in body and not any(_same(without_nulls(body[name]), value) for value in harmless):
            raise UnsupportedFieldError(f"{name}: {reason}", param=name)


def _same(given: Any, value: Any) -> bool:
    return type(given) is type(value) and bool(given == value)
