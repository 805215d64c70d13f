"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, WithJsonSchema

from tinyllm.errors import InvalidRequestError
from tinyllm.params import MAX_LOGPROBS, SamplingParams
from tinyllm.server.protocol.body import RequestModel
from tinyllm.server.protocol.fields import Refusals
from tinyllm.server.protocol.generate import GenerateRequest
from tinyllm.text.chat_template import RESERVED_VARIABLES

__all__ = ["ChatRequest", "Conversation", "Message"]

_TEXT_PART: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_MESSAGE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "role": {
            "type": "string",
            "pattern": "^[A-Za-z0-9_.-]{1,64}$",
            "examples": ["developer", "system", "user", "assistant", "tool"],
        },
        "content": {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"anyOf": [_TEXT_PART, {"type": "string"}]}},
                {"type": "null"},
            ]
        },
    },
    "required": ["role", "content"],
}

Message = Annotated[dict[str, Any], WithJsonSchema(_MESSAGE)]
"""The schema is for documents: what a message must be is checked where the template is applied."""


class Conversation(RequestModel):
    """Messages, and how they become a prompt."""

    messages: list[Message] = Field(min_length=1)
    """The conversation: objects with role and content, which is text or a list of text parts."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for the chat template, such as enable_thinking; ignored, and told so, where it lacks them."""
    add_generation_prompt: bool = True
    """End the prompt where the assistant begins to speak."""
    continue_final_message: bool = False
    """End the prompt inside the last message, so that the answer goes on with it."""
    reasoning_effort: str | None = Field(None, max_length=32)
    """Given to the chat template as a variable; ignored, and told so, where it is not read."""

    def chat(self, max_messages: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return messages and template arguments. Raises `InvalidRequestError`."""
        if len(self.messages) > max_messages:
            message = f"there are {len(self.messages)} messages; at most {max_messages} are taken"
            raise InvalidRequestError(message, param="messages")
        return _messages(self.messages), self._template_arguments()

    def begun(self) -> str:
        """Return the beginning of the answer, where the last message is one to go on with."""
        content = self.messages[-1].get("content") if self.continue_final_message else None
        return content if isinstance(content, str) else ""

    def _template_arguments(self) -> dict[str, Any]:
        variables = dict(self.chat_template_kwargs)
        if reserved := RESERVED_VARIABLES & variables.keys():
            message = f"chat_template_kwargs cannot have {min(reserved)!r}"
            raise InvalidRequestError(message, param="chat_template_kwargs")
        if self.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", self.reasoning_effort)
        if self.continue_final_message:  # implies that no new message is begun
            return variables | {"continue_final_message": True, "add_generation_prompt": False}
        return variables if self.add_generation_prompt else variables | {"add_generation_prompt": False}


class ChatRequest(Conversation, GenerateRequest):
    """A conversation to answer."""

    field_names: ClassVar[Mapping[str, str]] = {"prompt": "messages"}
    refused: ClassVar[Refusals] = {
        "echo": ((False,), "echo is for completions only"),
        "add_special_tokens": ((False,), "the chat template has all special tokens"),
        "max_output_tokens": ((), "the name here is max_completion_tokens"),
    }

    max_completion_tokens: int | None = Field(None, ge=0)
    """Most tokens to generate; counts before max_tokens. Default: to the end of the context."""
    logprobs: bool = False
    """Report each token's log probability."""
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    """Report this many most likely alternatives as well; needs logprobs."""
    include_reasoning: bool = True
    """Return what the model thought in a field of its own; else leave it out."""

    def names(self) -> Mapping[str, str]:
        """Return the names it uses; of two for one thing, the one that counts."""
        if self.max_completion_tokens is None:
            return self.field_names
        return {**self.field_names, "max_tokens": "max_completion_tokens"}

    def check(self) -> None:
        """Raise `InvalidRequestError` where fields do not go together."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequestError("top_logprobs needs logprobs: true", param="top_logprobs")

    def sampling_params(self, sampling: dict[str, Any]) -> SamplingParams:
        """Return the params: chat has its own names for two of them."""
        sampling = dict(sampling)
        if self.max_completion_tokens is not None:
            sampling["max_tokens"] = self.max_completion_tokens
        if self.logprobs:
            sampling["logprobs"] = self.top_logprobs or 0
        return SamplingParams(**sampling)


def _messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Call the developer what templates call it; the rest is checked where the template is applied."""
    return [
        {**message, "role": "system"} if message.get("role") == "developer" else dict(message)
        for message in messages
    ]
