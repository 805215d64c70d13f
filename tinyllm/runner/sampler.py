"""`Sampler`: from one row of logits per request to its next token.

The order in which a request's options act, each on what the ones before it left:

1. scores are taken from the model's own logits, where ``logprobs`` asks for them
2. ids that only pad the vocabulary are cut off, so they can never be sampled
3. `EDITS` change the row: the request's hooks, what it may take, its biases, its penalties
4. greedy takes the most likely token, the lowest id among equals (so does ``top_k=1``); otherwise
5. logits are divided by the temperature
6. `FILTERS` drop unlikely tokens: top_k, top_p, min_p, typical_p
7. one uniform number, a pure function of seed, answer and position, draws by the inverse CDF

Every operation treats rows alone: a request's token is the same, bit for bit, whatever else is in the
batch. To add an option, add a field to `SamplingParams` and a function to `EDITS` or `FILTERS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tinyllm.core.request import Request
from tinyllm.core.step import SampledToken, TokenScores
from tinyllm.errors import NoTokenLeftError, RequestFailedError
from tinyllm.params import SamplingParams
from tinyllm.runner.constraints import LogitsEdit, allowed_token_ids, bad_words, logit_bias, min_tokens
from tinyllm.runner.draw import draw
from tinyllm.runner.hooks import logits_processors
from tinyllm.runner.largest import largest
from tinyllm.runner.logprobs import score_tokens
from tinyllm.runner.penalties import penalties
from tinyllm.runner.rng import random_seed, uniform

__all__ = ["EDITS", "Sampler"]

EDITS: Final[tuple[Callable[[Request, int, torch.device], LogitsEdit | None], ...]] = (
    logits_processors,
    allowed_token_ids,
    bad_words,
    logit_bias,
    min_tokens,
    penalties,
)
"""Options that change one request's logits, in order: each reads the request once and returns its edit."""


class _RequestState:
    """What a request's options come to, worked out once: its edits and its seed."""

    def __init__(self, request: Request, vocab_size: int, device: torch.device) -> None:
        edits = (option(request, vocab_size, device) for option in EDITS)
        self.edits = [edit for edit in edits if edit is not None]
        self.seed = random_seed() if request.params.seed is None else request.params.seed


class Sampler:
    """Chooses the next token of each request of a batch.

    State of a request (token counts, the seed of one that gave none) lives as long as the `Request` object
    does, so it outlasts preemption, and nobody has to say when a request ends.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        """``vocab_size`` is how many ids may be sampled: the tokenizer's count, where the model has more."""
        self._vocab_size = vocab_size
        self._device = device
        self._states: WeakKeyDictionary[Request, _RequestState] = WeakKeyDictionary()

    def sample(self, logits: Tensor, requests: Sequence[Request]) -> list[SampledToken]:
        """Return the next token of each request. ``logits`` is float32 ``[len(requests), >= vocab_size]``.

        Overwrites ``logits``. A fault of one request is the ``error`` of its result (a `RequestFailedError`;
        ``token_id`` then means nothing) and does not touch the others.
        """
        faults: dict[int, RequestFailedError] = {}
        scored = [row for row, request in enumerate(requests) if request.params.logprobs is not None]
        logprobs = _rows(logits, scored).log_softmax(dim=-1) if scored else None
        logits = logits[:, : self._vocab_size]
        unusable = partial(RequestFailedError, "the model's logits are NaN or infinite")
        best = [0] * len(requests)
        _find_best(logits, range(len(requests)), unusable, best, faults)
        self._edit(logits, requests, best, faults)
        tokens = self._choose(logits, requests, best, faults)
        scores = {} if logprobs is None else self._score(logprobs, scored, tokens, requests)
        return [
            SampledToken(token, error=faults[row]) if row in faults else SampledToken(token, scores.get(row))
            for row, token in enumerate(tokens)
        ]

    def _edit(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        best: list[int],
        faults: dict[int, RequestFailedError],
    ) -> None:
        """Let the options of each request change its row, in place, and so what is best there."""
        edited = []
        for row, request in enumerate(requests):
            edits = self._state(request).edits
            if not edits or row in faults:
                continue
            try:
                for edit in edits:
                    edit(logits[row], request)
                edited.append(row)
            except RequestFailedError as error:
                faults[row] = error
        if edited:
            none_left = partial(NoTokenLeftError, "the request's options leave no token that can be sampled")
            _find_best(_rows(logits, edited), edited, none_left, best, faults)

    def _choose(
        self,
        logits: Tensor,
        requests: Sequence[Request],
        best: list[int],
        faults: dict[int, RequestFailedError],
    ) -> list[int]:
        """Return a token for each row: its best, or where there is a choice, one that is drawn."""
        tokens = list(best)
        drawn = [
            row
            for row, request in enumerate(requests)
            if row not in faults and not _is_greedy(request.params)
        ]
        if drawn:
            mine = [requests[row] for row in drawn]
            uniforms = [uniform(self._state(each).seed, each.index, each.num_output_tokens) for each in mine]
            found = draw(_rows(logits, drawn), [each.params for each in mine], uniforms)
            for row, token in zip(drawn, found, strict=True):
                tokens[row] = token
        return tokens

    def _score(
        self, logprobs: Tensor, rows: Sequence[int], tokens: Sequence[int], requests: Sequence[Request]
    ) -> dict[int, TokenScores]:
        """Return the scores of the tokens of these rows, by row."""
        num_top = [requests[row].params.logprobs or 0 for row in rows]
        scores = score_tokens(logprobs, [tokens[row] for row in rows], num_top, self._vocab_size)
        return dict(zip(rows, scores, strict=True))

    def _state(self, request: Request) -> _RequestState:
        state = self._states.get(request)
        if state is None:
            state = self._states[request] = _RequestState(request, self._vocab_size, self._device)
        return state


def _find_best(
    logits: Tensor,
    rows: Sequence[int],
    make_fault: Callable[[], RequestFailedError],
    best: list[int],
    faults: dict[int, RequestFailedError],
) -> None:
    """Put the most likely token of each of ``rows``, whose logits are given, into ``best``.

    A row whose maximum is not finite has a fault instead.
    """
    for row, value, token in zip(rows, *largest(logits), strict=True):
        best[row] = token
        if not math.isfinite(value):
            faults[row] = make_fault()


def _is_greedy(params: SamplingParams) -> bool:
    """Whether one token is left before any draw."""
    return params.is_greedy or params.top_k == 1


def _rows(values: Tensor, rows: Sequence[int]) -> Tensor:
    """Return these rows, ascending, without a copy when they are all of them."""
    return values if len(rows) == len(values) else values[rows]
