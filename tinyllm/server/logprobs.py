"""Log probabilities in the two forms that OpenAI's API has for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tinyllm.outputs import TokenLogprob, TopLogprob
from tinyllm.text.detokenizer import IncrementalDetokenizer
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["PlacedToken", "Places", "chat_logprobs", "completion_logprobs", "prompt_logprobs_field"]

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


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token of a completion, and where its text begins."""

    token_id: int
    place: int
    text: str = ""
    entry: TokenLogprob | None = None
    """None where there are no log probabilities: for an echoed prompt's first token, or if nobody asked."""


class Places:
    """Says where in a text each of its tokens begins: after the characters that the tokens before make.

    So tokens that are parts of one character share its place, and a token that makes no text has the place of
    what follows.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, skip_special_tokens: bool, start: int = 0) -> None:
        self._detokenizer = (
            None
            if tokenizer is None
            else IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        )
        self._known = start

    def next(self, token_id: int) -> int:
        """Return the next token's place."""
        if self._detokenizer is None:
            return self._known
        place = self._known + self._detokenizer.num_whole
        self._known += len(self._detokenizer.push(token_id))
        return place


def completion_logprobs(tokens: Sequence[PlacedToken], end: int, *, as_ids: bool) -> dict[str, Any]:
    """Return the ``logprobs`` of a completions choice. Tokens behind the text's ``end`` were cut off."""
    entries = [token.entry for token in tokens]
    return {
        "tokens": [f"token_id:{token.token_id}" if as_ids else token.text for token in tokens],
        "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
        "top_logprobs": [None if entry is None else _alternatives(entry, as_ids) for entry in entries],
        "text_offset": [min(token.place, end) for token in tokens],
    }


def _alternatives(entry: TokenLogprob, as_ids: bool) -> dict[str, float]:
    """Map texts to log probabilities, best first; of tokens that look the same the best stays."""
    found: dict[str, float] = {}
    for top in (*entry.top, entry):
        found.setdefault(token_text(top, as_ids=as_ids), finite(top.logprob))
    return found


def prompt_logprobs_field(entries: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """Return vLLM's ``prompt_logprobs``: for each prompt token but the first, what is known of it by id."""

    def one(entry: TopLogprob, rank: int | None) -> dict[str, Any]:
        return {"logprob": finite(entry.logprob), "rank": rank, "decoded_token": entry.token}

    def at(entry: TokenLogprob) -> dict[str, Any]:
        known = {str(top.token_id): one(top, rank) for rank, top in enumerate(entry.top, 1)}
        return known if str(entry.token_id) in known else {str(entry.token_id): one(entry, None), **known}

    return [None if entry is None else at(entry) for entry in entries]
