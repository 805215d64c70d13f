"""`IncrementalDetokenizer`: the text of a stream of tokens, piece by piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyllm.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer"]


class IncrementalDetokenizer:
    """Turns output tokens into text as they come.

    All pieces together are exactly ``tokenizer.decode`` of all the ids. A piece holds what cannot change any
    more: never part of a character, and never less than is known. Each token costs the same.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset[int]()
        self._decoder = tokenizer.start_decoding()

    def push(self, token_id: int) -> str:
        """Take the next token, and return the text that is final now (often that of the token, or none)."""
        if token_id in self._skipped:
            return ""
        piece = self._tokenizer.piece(token_id)
        return "" if piece is None else self._decoder.push(piece)

    @property
    def num_whole(self) -> int:
        """Whole characters that are held back: of some tokenizers, what follows could still break them."""
        return self._decoder.num_whole

    def flush(self) -> str:
        """Return what was held back, at the end of the stream: half a character shows as U+FFFD."""
        return self._decoder.flush()
