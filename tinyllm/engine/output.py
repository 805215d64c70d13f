"""`OutputStage`: one answer's tokens made into pieces of text, with stop strings and log probabilities."""

from __future__ import annotations

from tinyllm.core.request import Request, RequestStatus
from tinyllm.core.step import RequestUpdate, TokenScores
from tinyllm.outputs import FinishReason, RequestMetrics, RequestOutput, TokenLogprob, TopLogprob
from tinyllm.params import SamplingParams
from tinyllm.text.detokenizer import IncrementalDetokenizer
from tinyllm.text.stop import StopMatcher
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["OutputStage", "request_metrics", "token_logprob"]


class OutputStage:
    """Detokenises one answer and watches it for stop strings.

    Without a tokenizer the pieces have token ids and no text.
    """

    def __init__(self, request_id: str, index: int, params: SamplingParams, tokenizer: Tokenizer | None):
        self._request_id = request_id
        self._index = index
        self._params = params
        self._tokenizer = tokenizer
        self._detokenizer: IncrementalDetokenizer | None = None
        self._matcher: StopMatcher | None = None
        if tokenizer is not None:
            self._detokenizer = IncrementalDetokenizer(
                tokenizer, skip_special_tokens=params.skip_special_tokens
            )
            if params.stop:
                self._matcher = StopMatcher(params.stop, include=params.include_stop_str_in_output)

    def add(self, update: RequestUpdate, now: float) -> RequestOutput:
        """Return the piece for what a step brought: a token, the end, or both.

        The request's status says whether the scheduler ended it. If a stop string did, the piece has a
        ``finish_reason`` though the scheduler does not know yet.
        """
        status = update.request.status
        text, matched = self._text(update, status)
        reason: FinishReason | None = None
        if matched is not None or status is RequestStatus.FINISHED_STOPPED:
            reason = FinishReason.STOP
        elif status.is_finished:
            reason = FinishReason.LENGTH
        return RequestOutput(
            request_id=self._request_id,
            index=self._index,
            text=text,
            token_ids=() if update.token_id is None else (update.token_id,),
            logprobs=self._logprobs(update),
            finish_reason=reason,
            stop_reason=update.stop_reason if matched is None else matched,
            metrics=None if reason is None else request_metrics(update.request, now),
        )

    def _text(self, update: RequestUpdate, status: RequestStatus) -> tuple[str, str | None]:
        """Return the new text that may be shown, and the stop string that ended it."""
        if self._detokenizer is None:
            return "", None
        text = ""
        hidden = status is RequestStatus.FINISHED_STOPPED and not self._params.include_stop_str_in_output
        if update.token_id is not None and not hidden:
            text = self._detokenizer.push(update.token_id)
        if status.is_finished:
            text += self._detokenizer.flush()
        if self._matcher is None:
            return text, None
        armed = update.request.num_output_tokens >= self._params.min_tokens
        text, matched = self._matcher.push(text, armed=armed)
        if matched is None and status.is_finished:
            text += self._matcher.flush()  # it looked like the start of a stop string, and was not
        return text, matched

    def _logprobs(self, update: RequestUpdate) -> tuple[TokenLogprob, ...] | None:
        if self._params.logprobs is None:
            return None
        return () if update.scores is None else (token_logprob(update.scores, self._tokenizer),)


def token_logprob(scores: TokenScores, tokenizer: Tokenizer | None) -> TokenLogprob:
    """Give token ids their text and bytes."""
    top = tuple(TopLogprob(*_spell(token_id, tokenizer), logprob) for token_id, logprob in scores.top)
    return TokenLogprob(*_spell(scores.token_id, tokenizer), scores.logprob, top)


def _spell(token_id: int, tokenizer: Tokenizer | None) -> tuple[int, str, bytes]:
    if tokenizer is None:
        return token_id, "", b""
    return token_id, tokenizer.token(token_id), tokenizer.token_bytes(token_id)


def request_metrics(request: Request, now: float) -> RequestMetrics:
    """Work out an answer's times from the scheduler's notes."""
    arrival, scheduled = request.arrival_time, request.first_scheduled_time
    first, last = request.first_token_time, request.last_token_time
    gaps = request.num_output_tokens - 1
    return RequestMetrics(
        queued=None if scheduled is None else scheduled - arrival,
        prefill=None if first is None or scheduled is None else first - scheduled,
        time_to_first_token=None if first is None else first - arrival,
        mean_inter_token=None if first is None or last is None or gaps < 1 else (last - first) / gaps,
        total=now - arrival,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
    )
