"""Repetition, presence and frequency penalties, at a cost that does not grow with the text."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from tinyllm.core.request import Request
from tinyllm.runner.constraints import LogitsEdit

__all__ = ["penalties"]

_FIRST_CAPACITY: Final = 256


def penalties(request: Request, vocab_size: int, device: torch.device) -> LogitsEdit | None:
    """Make tokens that are already there less likely (or more, where a penalty says so)."""
    params = request.params
    if params.repetition_penalty == 1 and not params.frequency_penalty and not params.presence_penalty:
        return None
    return _Penalties(vocab_size, device)


class _Penalties:
    """The penalties of one request, and the counts they need: a step looks at its new tokens only.

    With c the times a token is in the output: repetition divides its logit where positive and multiplies it
    where negative, if the token is in prompt or output (Keskar et al., 2019); then frequency takes off its
    share c times and presence once, if c > 0. Same order and meaning as in vLLM and OpenAI's reference.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._seen = 0
        self._place: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._counts = np.zeros(_FIRST_CAPACITY, dtype=np.float32)

    def __call__(self, logits: Tensor, request: Request) -> None:
        """Change one row of logits ``[vocab_size]`` in place."""
        self._count(request)
        used = len(self._place)
        ids = torch.from_numpy(self._ids[:used]).to(self._device)
        counts = torch.from_numpy(self._counts[:used]).to(self._device)
        params, found = request.params, logits[ids]
        if params.repetition_penalty is not None and params.repetition_penalty != 1:
            penalty = params.repetition_penalty
            found = torch.where(found > 0, found / penalty, found * penalty)
        if params.frequency_penalty:
            found -= params.frequency_penalty * counts
        if params.presence_penalty:
            found -= params.presence_penalty * (counts > 0)
        logits[ids] = found

    def _count(self, request: Request) -> None:
        """Take in the tokens that came since the last call; prompt tokens are known, but not counted."""
        new, first = request.token_ids[self._seen :], self._seen
        self._seen += len(new)
        for position, token in enumerate(new, start=first):
            if token >= self._vocab_size:
                continue
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] += position >= request.num_prompt_tokens
