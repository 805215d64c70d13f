"""``POST /v1/responses``, without state and for text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import Field

from tinyllm.errors import InvalidRequestError
from tinyllm.params import SamplingParams
from tinyllm.server.protocol.body import StrictModel
from tinyllm.server.protocol.fields import STRUCTURED, Refusals, UnsupportedFieldError, without_nulls
from tinyllm.server.protocol.generate import GenerateRequest

__all__ = ["ResponsesRequest"]

TEXT_PARTS: Final = ("input_text", "output_text", "text")


class TextOptions(StrictModel):
    """What form the text is to have."""

    format: dict[str, Any] | None = None
    """Only {"type": "text"}."""
    verbosity: str | None = None
    """Taken, without effect."""


class ReasoningOptions(StrictModel):
    """How much the model is to think."""

    effort: str | None = Field(default=None, max_length=32)
    """Given to the chat template as reasoning_effort."""
    summary: str | None = None
    """Taken, without effect: thoughts are given whole."""
    generate_summary: str | None = None
    """Taken, without effect."""


class ResponsesRequest(GenerateRequest):
    """A conversation to answer."""

    refused: ClassVar[Refusals] = {
        "n": ((1,), "responses have one answer"),
        "logprobs": ((), "log probabilities are for chat completions and completions"),
        "prompt_logprobs": ((), "log probabilities are for chat completions and completions"),
        "top_logprobs": ((0,), "log probabilities are for chat completions and completions"),
        "return_token_ids": ((False,), "token ids are for chat completions and completions"),
        "return_tokens_as_token_ids": (
            (False,),
            "log probabilities are for chat completions and completions",
        ),
        "max_tokens": ((), "the name here is max_output_tokens"),
        "max_completion_tokens": ((), "the name here is max_output_tokens"),
        "prompt": ((), "stored prompts are not supported; send the text as input"),
        "context_management": (([],), "no state is kept between requests"),
    }

    field_names: ClassVar[Mapping[str, str]] = {
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "reasoning_effort": "reasoning.effort",
    }

    input: str | list[dict[str, Any]]
    """What the user says, or the whole conversation as items."""
    instructions: str | None = None
    """A system message that comes first."""
    max_output_tokens: int | None = Field(None, ge=1)
    """Most tokens to generate. Default: to the end of the context."""
    text: TextOptions = TextOptions()
    """What form the text is to have."""
    reasoning: ReasoningOptions = ReasoningOptions()
    """How much the model is to think."""
    truncation: Literal["disabled"] = "disabled"
    """A conversation that does not fit is refused."""
    include: list[str] = Field(default_factory=list)
    """Taken, without effect."""
    max_tool_calls: int | None = None
    """Taken, without effect."""

    def check(self) -> None:
        """Raise `InvalidRequestError` where fields do not go together."""
        super().check()
        if without_nulls(self.text.format) not in (None, {"type": "text"}):
            raise UnsupportedFieldError(f"text.format: {STRUCTURED}", param="text.format")

    def messages(self, limit: int) -> list[dict[str, Any]]:
        """Return the conversation as chat messages."""
        items = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        if len(items) > limit:
            message = f"input has {len(items)} items; at most {limit} are taken"
            raise InvalidRequestError(message, param="input")
        said = [(index, item) for index, item in enumerate(items) if item.get("type") != "reasoning"]
        messages = [_message(index, item) for index, item in said]
        system = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return system + messages

    def template_arguments(self) -> dict[str, Any]:
        """Return variables for the chat template."""
        return {} if self.reasoning.effort is None else {"reasoning_effort": self.reasoning.effort}

    def sampling_params(self, sampling: dict[str, Any]) -> SamplingParams:
        """Return the params."""
        if self.max_output_tokens is not None:
            sampling = {**sampling, "max_tokens": self.max_output_tokens}
        return SamplingParams(**sampling)


def _message(index: int, item: Mapping[str, Any]) -> dict[str, Any]:
    kind, role, content = item.get("type", "message"), item.get("role"), item.get("content")
    if kind != "message" or role not in ("user", "assistant", "system", "developer"):
        message = f"input[{index}] must be a message of user, assistant, system or developer"
        raise UnsupportedFieldError(message, param="input")
    if isinstance(content, list):
        content = [_part(index, part) for part in content]
    return {"role": "system" if role == "developer" else role, "content": content}


def _part(index: int, part: object) -> dict[str, Any]:
    if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS:
        message = f"input[{index}] has a part that is not text; only text is supported"
        raise UnsupportedFieldError(message, param="input")
    return {"type": "text", "text": part.get("text")}
