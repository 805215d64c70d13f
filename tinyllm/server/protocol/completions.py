"""``POST /v1/completions``."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from tinyllm.errors import InvalidRequestError
from tinyllm.params import SamplingParams
from tinyllm.server.protocol.fields import Refusals
from tinyllm.server.protocol.generate import GenerateRequest

__all__ = ["CompletionRequest", "Prompt"]

DEFAULT_MAX_TOKENS: Final = 16

Prompt = str | list[int]


class CompletionRequest(GenerateRequest):
    """Prompts to go on with."""

    refused: ClassVar[Refusals] = {
        "max_completion_tokens": ((), "the name here is max_tokens"),
        "max_output_tokens": ((), "the name here is max_tokens"),
        "top_logprobs": ((0,), "the name here is logprobs, which takes the number"),
    }

    prompt: str | list[Any]
    """Text, a list of texts, a list of token ids, or a list of such lists."""
    echo: bool = False
    """Put the prompt before each answer."""
    add_special_tokens: bool = True
    """Let the tokenizer put its own tokens, such as BOS, around a text."""

    def prompts(self, limit: int) -> list[Prompt]:
        """Return the prompts one by one, at most ``limit``."""
        given = self.prompt
        if isinstance(given, str) or (given and all(type(item) is int for item in given)):
            return [given]
        if not given:
            raise InvalidRequestError("prompt is an empty list", param="prompt")
        if len(given) > limit:
            raise InvalidRequestError(
                f"prompt has {len(given)} entries; at most {limit} are taken", param="prompt"
            )
        for index, item in enumerate(given):
            if not isinstance(item, str) and not (
                isinstance(item, list) and all(type(i) is int for i in item)
            ):
                message = f"prompt[{index}] must be text or a list of token ids, as all entries"
                raise InvalidRequestError(message, param="prompt")
        return list(given)

    def sampling_params(self, sampling: dict[str, Any]) -> SamplingParams:
        """Return the params; an echoed prompt is scored like the answer."""
        sampling = {"max_tokens": DEFAULT_MAX_TOKENS, **sampling}
        if self.echo and "logprobs" in sampling:
            sampling.setdefault("prompt_logprobs", sampling["logprobs"])
        return SamplingParams(**sampling)
