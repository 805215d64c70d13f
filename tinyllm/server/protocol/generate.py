"""What chat and completions requests have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from tinyllm.errors import InvalidRequestError
from tinyllm.params import SamplingParams
from tinyllm.server.protocol.body import RequestModel, StrictModel

__all__ = ["GenerateRequest", "StreamOptions"]


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool | None = None
    """Send token counts in a chunk of their own before the end."""
    continuous_usage_stats: bool | None = None
    """Send the counts so far with every chunk."""
    include_obfuscation: bool | None = None
    """Taken, without effect: chunks are not padded."""


class GenerateRequest(RequestModel):
    """Fields of every request that generates."""

    samples: ClassVar[bool] = True
    field_names: ClassVar[Mapping[str, str]] = {}
    """What every request of its kind calls things that the engine has other names for."""

    stream: bool = False
    """Send the answer in pieces, as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream."""
    priority: int = 0
    """Smaller runs sooner; with several API keys not below 0."""
    cache_salt: str = Field("", max_length=512)
    """Share cached prefixes only with requests that give the same."""
    request_id: str | None = Field(None, min_length=1, max_length=128, pattern=r"^[\x21-\x7e]+$")
    """What to call this request, in place of the header x-request-id."""
    truncate_prompt_tokens: int | None = Field(None, ge=1)
    """Keep only this many tokens at the end of the prompt."""
    return_token_ids: bool = False
    """Also return the token ids of prompt and answers; a stream's first chunk has the prompt's."""
    return_tokens_as_token_ids: bool = False
    """Show tokens in log probabilities as token_id:N."""

    def names(self) -> Mapping[str, str]:
        """Return what this request calls things that the engine has other names for."""
        return self.field_names

    def check(self) -> None:
        """Raise `InvalidRequestError` where fields do not go together."""
        if self.stream_options is not None and not self.stream:
            raise InvalidRequestError("stream_options needs stream: true", param="stream_options")

    def sampling_params(self, sampling: dict[str, Any]) -> SamplingParams:
        """Return the params of the request; ``sampling`` is what was given of them."""
        return SamplingParams(**sampling)
