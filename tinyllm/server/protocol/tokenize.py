"""``POST /tokenize`` and ``/detokenize``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tinyllm.errors import InvalidRequestError
from tinyllm.server.protocol.body import RequestModel
from tinyllm.server.protocol.chat import Conversation, Message

__all__ = ["DetokenizeRequest", "TokenizeRequest"]


class TokenizeRequest(Conversation):
    """A text, or a conversation, to be cut into tokens."""

    prompt: str | None = None
    """A text; or give messages."""
    messages: list[Message] = Field(default_factory=list)
    """A conversation; or give a prompt."""
    add_special_tokens: bool = True
    """Let the tokenizer put its own tokens, such as BOS, around a text."""
    return_token_strs: bool = False
    """Also return each token's text."""

    def check(self) -> None:
        """Raise `InvalidRequestError` unless there is a prompt or a conversation."""
        if (self.prompt is None) == (not self.messages):
            raise InvalidRequestError("give either a prompt or messages", param="prompt")


class DetokenizeRequest(RequestModel):
    """Tokens to be made text."""

    tokens: list[Annotated[int, Field(ge=0, lt=2**32)]]
    """Token ids."""
    skip_special_tokens: bool = False
    """Leave special tokens out."""
