"""Log probabilities in the two forms that OpenAI's API has for them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tinyllm.outputs import TokenLogprob, TopLogprob

__all__ = ["CompletionLogprobs", "chat_logprobs", "prompt_logprobs_field"]

LOWEST: Final = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def finite(logprob: float) -> float:
    """Return a number that JSON can say."""
    return max(logprob, LOWEST)


def token_text(entry: TopLogprob, *, as_ids: bool) -> str:
    """Return a token's text, or ``token_id:N``, which unlike text is the same for no two tokens."""
    return f"token_id:{entry.token_id}" if as_ids else entry.token


def chat_logprobs(entries: Iterable[TokenLogprob], *, as_ids: bool) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat choice."""

    def one(entry: TopLogprob) -> dict[str, Any]:
        text = token_text(entry, as_ids=as_ids)
        return {"token": text, "logprob": finite(entry.logprob), "bytes": list(entry.bytes)}

    content = [one(entry) | {"top_logprobs": [one(top) for top in entry.top]} for entry in entries]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """Builds the ``logprobs`` of one completions choice; offsets go on over its chunks.

    A token's offset is the place of its first character in the text; tokens that are parts of one character
    share it.
    """

    def __init__(self, *, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._offset = 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, entries: Sequence[TokenLogprob | None], first_token: str = "") -> dict[str, Any]:
        """Return the next entries as an object. None is an echoed prompt's first token, ``first_token``."""
        tokens: list[str] = []
        offsets: list[int] = []
        for entry in entries:
            tokens.append(first_token if entry is None else token_text(entry, as_ids=self._as_ids))
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(first_token.encode() if entry is None else entry.bytes))
        return {
            "tokens": tokens,
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [None if entry is None else self._alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float]:
        """Map texts to log probabilities, best first; of tokens that look the same the best stays."""
        found: dict[str, float] = {}
        for top in (*entry.top, entry):
            found.setdefault(token_text(top, as_ids=self._as_ids), finite(top.logprob))
        return found


def prompt_logprobs_field(entries: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """Return vLLM's ``prompt_logprobs``: for each prompt token but the first, what is known of it by id."""

    def one(entry: TopLogprob, rank: int | None) -> dict[str, Any]:
        return {"logprob": finite(entry.logprob), "rank": rank, "decoded_token": entry.token}

    def at(entry: TokenLogprob) -> dict[str, Any]:
        known = {str(top.token_id): one(top, rank) for rank, top in enumerate(entry.top, 1)}
        return known if str(entry.token_id) in known else {str(entry.token_id): one(entry, None), **known}

    return [None if entry is None else at(entry) for entry in entries]
