"""`SamplingParams`: how the tokens of one request are chosen and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from tinyllm.errors import InvalidRequestError
from tinyllm.faults import first_fault

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_CHOICES",
    "MAX_LOGPROBS",
    "MAX_STOP_STRINGS",
    "LogitsProcessor",
    "SamplingDefaults",
    "SamplingParams",
]

MAX_CHOICES: Final = 16
MAX_LOGPROBS: Final = 20
MAX_STOP_STRINGS: Final = 16
MAX_STOP_LENGTH: Final = 256
MAX_LIST: Final = 1024

if TYPE_CHECKING:
    LogitsProcessor = Callable[[list[int], torch.Tensor], torch.Tensor]
else:
    LogitsProcessor = Callable[..., Any]
"""``(token_ids, logits) -> logits``: prompt and output ids so far, and one float32 row ``[vocab_size]``.

Runs on the executor thread, before temperature. It may change the row in place, and returns the row to use.
"""


def _as_tuple(value: Any) -> Any:
    """Let one value stand for a sequence of one, and None for none."""
    if value is None:
        return ()
    if isinstance(value, (str, int)):
        return (value,)
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


def _token_id_key(value: Any) -> Any:
    """Read a token id that is a JSON object's key, and so a string."""
    is_id = isinstance(value, str) and len(value) <= 20 and value.isascii() and value.isdecimal()
    return int(value) if is_id else value


_T = TypeVar("_T")
_Many = Annotated[Sequence[_T], BeforeValidator(_as_tuple), Field(default=())]
"""A tuple; whoever makes the params may give a list, or one value."""
_TokenId = Annotated[int, Field(strict=True, ge=0)]
_TokenIdKey = Annotated[_TokenId, BeforeValidator(_token_id_key)]


class SamplingDefaults(BaseModel):
    """What a model's ``generation_config.json`` says about sampling; None where it says nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None


class SamplingParams(BaseModel):
    """How the tokens of one request are chosen and when it ends.

    A sampling field left at None takes the model's own default (`resolved`). Raises
    `InvalidRequestError`, with ``param`` naming the field, on a wrong name, type or value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    n: int = Field(default=1, strict=True, ge=1, le=MAX_CHOICES)
    """Number of answers to one prompt, whose full KV blocks are computed once."""

    temperature: float | None = Field(default=None, strict=True, ge=0, allow_inf_nan=False)
    """Divides the logits; 0 is greedy."""
    top_k: int | None = Field(default=None, strict=True, ge=-1)
    """Keep the k most likely tokens; 0 and -1 keep all."""
    top_p: float | None = Field(default=None, strict=True, gt=0, le=1)
    """Keep the smallest set of most likely tokens whose probability reaches this (nucleus sampling)."""
    min_p: float | None = Field(default=None, strict=True, ge=0, le=1)
    """Drop tokens less likely than this share of the most likely one."""
    typical_p: float | None = Field(default=None, strict=True, gt=0, le=1)
    """Keep the tokens whose surprise is nearest the entropy, up to this mass (locally typical sampling)."""

    repetition_penalty: float | None = Field(default=None, strict=True, ge=0.01, le=100)
    """Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off."""
    presence_penalty: float = Field(default=0.0, strict=True, ge=-2, le=2)
    """Subtracted once from the logit of each token already in the output."""
    frequency_penalty: float = Field(default=0.0, strict=True, ge=-2, le=2)
    """Subtracted for each time a token is already in the output."""

    logit_bias: dict[_TokenIdKey, Annotated[float, Field(strict=True, ge=-100, le=100)]] | None = None
    """Added to the logits of these token ids, at most 1024."""
    allowed_token_ids: _Many[_TokenId] = ()
    """Only these token ids may be sampled, if any are given."""
    bad_words: _Many[Annotated[str, Field(strict=True, min_length=1, max_length=MAX_STOP_LENGTH)]] = ()
    """Texts whose token sequence must not be completed, at most 1024."""
    logits_processors: tuple[LogitsProcessor, ...] = Field(default=(), exclude=True)
    """In-process hooks, run in order on this request's logits; see `LogitsProcessor`."""
    seed: int | None = Field(default=None, strict=True, ge=-(2**63), lt=2**63)
    """Makes sampling repeatable, whatever else is in the batch."""

    max_tokens: int | None = Field(default=None, strict=True, ge=0)
    """Most tokens to generate, if not to the end of the context; 0 computes the prompt only."""
    min_tokens: int = Field(default=0, strict=True, ge=0)
    """End-of-sequence and stop tokens are not sampled, nor stop strings matched, before this many tokens."""
    ignore_eos: bool = Field(default=False, strict=True)
    """Go on after an end-of-sequence token."""
    stop: _Many[Annotated[str, Field(strict=True, min_length=1, max_length=MAX_STOP_LENGTH)]] = ()
    """Texts that end the answer, at most 16; not part of it unless ``include_stop_str_in_output``."""
    stop_token_ids: _Many[_TokenId] = ()
    """Token ids that end the answer, at most 1024; like end-of-sequence, their text is left out."""
    include_stop_str_in_output: bool = Field(default=False, strict=True)
    """Keep the stop string or stop token's text at the end of the answer."""

    logprobs: int | None = Field(default=None, strict=True, ge=0, le=MAX_LOGPROBS)
    """Report each token's log probability (raw log-softmax) and this many most likely alternatives."""
    prompt_logprobs: int | None = Field(default=None, strict=True, ge=0, le=MAX_LOGPROBS)
    """As ``logprobs``, of the prompt's tokens; the first has none. Such a request reads no cached prefix."""
    skip_special_tokens: bool = Field(default=True, strict=True)
    """Leave special tokens out of the text."""

    if not TYPE_CHECKING:  # type checkers see pydantic's own signature, with the fields' names and types

        def __init__(self, **values: Any) -> None:
            _check_lengths(values)
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _invalid(error) from None

    @model_validator(mode="after")
    def _check(self) -> SamplingParams:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequestError(
                f"min_tokens ({self.min_tokens}) is more than max_tokens ({self.max_tokens})",
                param="min_tokens",
            )
        return self

    def resolved(self, defaults: SamplingDefaults) -> SamplingParams:
        """Return a copy in which every sampling field has a value: its own, the model's, or neutral."""
        neutral: Mapping[str, float | int] = {
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "typical_p": 1.0,
            "repetition_penalty": 1.0,
        }
        values: dict[str, float | int] = {}
        for name, fallback in neutral.items():
            own, model = getattr(self, name), getattr(defaults, name)
            values[name] = own if own is not None else model if model is not None else fallback
        if values["top_k"] == -1:
            values["top_k"] = 0
        return self.model_copy(update=values)

    @property
    def wants_logprobs(self) -> bool:
        """Whether log probabilities of answers or prompt are asked for."""
        return self.logprobs is not None or self.prompt_logprobs is not None

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken (of resolved params)."""
        return self.temperature is not None and self.temperature < GREEDY_TEMPERATURE


GREEDY_TEMPERATURE: Final = 1e-5
"""Below this, dividing logits by the temperature overflows float32's useful range: it means greedy."""


_LENGTHS: Final = {
    "stop": MAX_STOP_STRINGS,
    "stop_token_ids": MAX_LIST,
    "bad_words": MAX_LIST,
    "logit_bias": MAX_LIST,
}


def _check_lengths(values: Mapping[str, Any]) -> None:
    """Refuse what is too long before its entries are looked at: that would hold up an event loop."""
    for name, limit in _LENGTHS.items():
        given = values.get(name)
        if isinstance(given, Collection) and not isinstance(given, (str, bytes)) and len(given) > limit:
            raise InvalidRequestError(f"{name} takes at most {limit} entries, not {len(given)}", param=name)


def _invalid(error: ValidationError) -> InvalidRequestError:
    if error.error_count() == 1:
        cause = error.errors(include_url=False)[0].get("ctx", {}).get("error")
        if isinstance(cause, InvalidRequestError):
            return cause
    field, message = first_fault(error)
    return InvalidRequestError(message, param=field)
