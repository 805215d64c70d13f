"""Constraints: which tokens a request may take at all, and what it adds to their logits.

Each function reads one request's options and returns the edit they ask for, or None where the option is
off. An edit changes one row of logits ``[vocab_size]`` in place. It must not hold on to the request, which
it is given each time: what it keeps is dropped when the request is. Ids outside the vocabulary are
refused before admission; here they have no effect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tinyllm.core.request import Request

__all__ = ["LogitsEdit", "allowed_token_ids", "bad_words", "logit_bias", "min_tokens"]

LogitsEdit = Callable[[Tensor, Request], None]
"""Changes one row of logits in place. Raises `RequestFailedError` for a fault of this request."""


def allowed_token_ids(request: Request, vocab_size: int, device: torch.device) -> LogitsEdit | None:
    """Forbid every token but these."""
    if not request.params.allowed_token_ids:
        return None
    allowed = _ids(set(request.params.allowed_token_ids), vocab_size, device)

    def edit(logits: Tensor, request: Request) -> None:
        kept = logits[allowed]
        logits.fill_(-math.inf)
        logits[allowed] = kept

    return edit


def bad_words(request: Request, vocab_size: int, device: torch.device) -> LogitsEdit | None:
    """Forbid the last token of each bad word where the output ends with the tokens before it."""
    words = [word for word in request.bad_word_token_ids if word and word[-1] < vocab_size]
    if not words:
        return None
    always = [word[-1] for word in words if len(word) == 1]
    after: dict[int, list[tuple[int, ...]]] = {}
    for word in words:
        if len(word) > 1:
            after.setdefault(word[-2], []).append(word)

    def edit(logits: Tensor, request: Request) -> None:
        forbidden = list(always)
        tokens, output = request.token_ids, request.num_output_tokens
        for word in after.get(tokens[-1], ()):
            length = len(word) - 1
            if length <= output and tuple(tokens[-length:]) == word[:-1]:
                forbidden.append(word[-1])
        if forbidden:
            logits[forbidden] = -math.inf

    return edit


def logit_bias(request: Request, vocab_size: int, device: torch.device) -> LogitsEdit | None:
    """Add to the logits of these tokens."""
    biases = {token: bias for token, bias in (request.params.logit_bias or {}).items() if token < vocab_size}
    if not biases:
        return None
    tokens = _ids(biases, vocab_size, device)
    values = torch.tensor([biases[token] for token in tokens.tolist()], dtype=torch.float32, device=device)

    def edit(logits: Tensor, request: Request) -> None:
        logits[tokens] += values

    return edit


def min_tokens(request: Request, vocab_size: int, device: torch.device) -> LogitsEdit | None:
    """Forbid end-of-sequence and stop tokens while the output is shorter than this."""
    if not request.params.min_tokens:
        return None
    ends = _ids(request.eos_token_ids.union(request.params.stop_token_ids), vocab_size, device)

    def edit(logits: Tensor, request: Request) -> None:
        if request.num_output_tokens < request.params.min_tokens:
            logits[ends] = -math.inf

    return edit


def _ids(tokens: Iterable[int], vocab_size: int, device: torch.device) -> Tensor:
    """Return those of ``tokens`` that are in the vocabulary, int64, ascending."""
    return torch.tensor(sorted(t for t in tokens if t < vocab_size), dtype=torch.int64, device=device)
