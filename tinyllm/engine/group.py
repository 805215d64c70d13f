"""`RequestGroup`: one accepted request on the executor thread: its ``n`` answers, which share a stream."""

from __future__ import annotations

from tinyllm.core.request import Request
from tinyllm.core.step import RequestUpdate
from tinyllm.engine.loaded import LoadedModel
from tinyllm.engine.messages import Delivery, Submission
from tinyllm.engine.output import OutputStage, token_logprob
from tinyllm.errors import TinyLLMError
from tinyllm.metrics import FinishedRequest
from tinyllm.outputs import RequestOutput, TokenLogprob

__all__ = ["RequestGroup"]


class RequestGroup:
    """The answers to one prompt, and what the present step has for their stream."""

    def __init__(self, submission: Submission, model: LoadedModel) -> None:
        self.submission = submission
        self.requests = _make_requests(submission, model)
        self.num_open = len(self.requests)
        """Answers that have not had their last piece."""
        self.started = False
        self.token_times: list[float | None] = [None] * len(self.requests)
        """When each answer had its last token."""
        self.stalled_since: float | None = None
        """Since when the scheduler passes over it because its stream is full."""
        self._stages = [
            OutputStage(submission.request_id, request.index, submission.params, model.tokenizer)
            for request in self.requests
        ]
        self._model = model
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        if submission.params.prompt_logprobs is not None:
            self._prompt_logprobs = [None]  # the first token has none
        self._pieces: list[RequestOutput] = []

    @property
    def request_id(self) -> str:
        """The stream's; answers have ids of their own."""
        return self.submission.request_id

    @property
    def has_room(self) -> bool:
        """Whether its stream takes another piece."""
        return self.submission.credit.available > 0

    @property
    def is_stalled(self) -> bool:
        """Whether an answer waits for the stream's reader."""
        return any(r.stalled_since is not None and not r.status.is_finished for r in self.requests)

    @property
    def phase(self) -> str:
        """Where it is, in the words of `tinyllm.metrics.CANCEL_PHASES`."""
        if not self.started:
            return "queued"
        if self.is_stalled:
            return "stalled"
        return "decode" if any(request.num_output_tokens for request in self.requests) else "prefill"

    def add(self, update: RequestUpdate, now: float) -> RequestOutput | None:
        """Take what a step brought for one answer; returns its piece, if it made one."""
        if self._prompt_logprobs is not None:
            self._prompt_logprobs += [token_logprob(s, self._model.tokenizer) for s in update.prompt_scores]
        if update.token_id is None and not update.request.status.is_finished:
            return None
        piece = self._stages[update.request.index].add(update, now)
        self._pieces.append(piece)
        if piece.finish_reason is not None:
            self.num_open -= 1
        return piece

    def delivery(self, *, started: bool, error: TinyLLMError | None) -> Delivery:
        """Return the step's delivery, and count the credit it costs."""
        pieces, self._pieces = tuple(self._pieces), []
        prompt_logprobs = None
        if pieces:
            self.submission.credit.sent += 1
            if self._prompt_logprobs is not None:
                prompt_logprobs, self._prompt_logprobs = tuple(self._prompt_logprobs), None
        finished = error is not None or self.num_open == 0
        return Delivery(self.request_id, pieces, started, finished, error, prompt_logprobs)

    def summary(self, reason: str, now: float) -> FinishedRequest:
        """Return what the metrics want to know at the end."""
        leader, params = self.requests[0], self.submission.params
        scheduled, first = leader.first_scheduled_time, leader.first_token_time
        last = max((r.last_token_time for r in self.requests if r.last_token_time is not None), default=None)
        lengths = [request.num_output_tokens for request in self.requests]
        return FinishedRequest(
            reason=reason,
            total=now - leader.arrival_time,
            prompt_tokens=leader.num_prompt_tokens,
            generation_tokens=sum(lengths),
            longest_answer=max(lengths),
            n=params.n,
            max_tokens=self.submission.max_tokens,
            queued=_between(leader.arrival_time, scheduled),
            prefill=_between(scheduled, first),
            decode=_between(first, last),
            inference=_between(scheduled, last),
        )


def _make_requests(submission: Submission, model: LoadedModel) -> list[Request]:
    requests: list[Request] = []
    for index in range(submission.params.n):
        request = Request(
            request_id=f"{submission.request_id}/{index}",
            prompt_token_ids=list(submission.prompt_token_ids),
            params=submission.params,
            max_tokens=submission.max_tokens,
            eos_token_ids=model.eos_token_ids,
            arrival_time=submission.arrival_time,
            priority=submission.priority,
            deadline=submission.deadline,
            queue_deadline=submission.queue_deadline,
            cache_salt=submission.cache_salt,
            bad_word_token_ids=submission.bad_word_token_ids,
            index=index,
            leader=requests[0] if requests else None,
            credit=submission.credit,
        )
        requests.append(request)
    return requests


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
