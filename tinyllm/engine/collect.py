"""`Collector`: the pieces of a request, put together to a `GenerationResult`."""

from __future__ import annotations

from collections import defaultdict

from tinyllm.outputs import (
    CompletionOutput,
    FinishReason,
    GenerationResult,
    RequestMetrics,
    RequestOutput,
    TokenLogprob,
    Usage,
)
from tinyllm.params import SamplingParams

__all__ = ["Collector"]


class Collector:
    """Takes pieces as they come; `result` when every answer has had its last."""

    def __init__(self) -> None:
        self._pieces: defaultdict[int, list[RequestOutput]] = defaultdict(list)

    def add(self, piece: RequestOutput) -> None:
        """Take the next piece of any of the answers."""
        self._pieces[piece.index].append(piece)

    def result(
        self,
        request_id: str,
        prompt_token_ids: tuple[int, ...],
        params: SamplingParams,
        prompt_logprobs: tuple[TokenLogprob | None, ...] | None,
    ) -> GenerationResult:
        """Put the pieces together."""
        choices = tuple(_join(index, pieces) for index, pieces in sorted(self._pieces.items()))
        usage = Usage(
            prompt_tokens=len(prompt_token_ids),
            completion_tokens=sum(len(choice.token_ids) for choice in choices),
            cached_tokens=choices[0].metrics.num_cached_tokens,
        )
        return GenerationResult(request_id, prompt_token_ids, params, choices, usage, prompt_logprobs)


def _join(index: int, pieces: list[RequestOutput]) -> CompletionOutput:
    last = pieces[-1]
    logprobs = None
    if any(piece.logprobs is not None for piece in pieces):
        logprobs = tuple(entry for piece in pieces for entry in piece.logprobs or ())
    return CompletionOutput(
        index=index,
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token_id for piece in pieces for token_id in piece.token_ids),
        finish_reason=last.finish_reason or FinishReason.STOP,
        stop_reason=last.stop_reason,
        logprobs=logprobs,
        metrics=last.metrics or RequestMetrics(),
    )
