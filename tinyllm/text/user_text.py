"""`UserText`: what messages spell stays text, so that nobody can write a special token, or forge a turn.

A chat template writes special tokens and messages into one text, in which they look the same. So a mark that
nobody can guess is put before whatever in a message spells a special token. In the rendered text, each
special token without a mark gets a stand-in, the marks are taken out, and a second tokenizer, which knows the
stand-ins and no other special token, encodes the whole.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from itertools import groupby, pairwise
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken

from tinyllm.errors import InvalidRequestError, TokenizerError
from tinyllm.text.tokenizer import Tokenizer

__all__ = ["UserText"]

ALLOWED: Final = frozenset({"<think>", "</think>"})
"""Messages may spell these even where they are special: an assistant's thoughts are given back like that."""

MAX_GAPS: Final = 1 << 20


class UserText:
    """Marks messages, and encodes what a template made of them. Thread-safe: nothing changes once it is made.

    Special tokens that count only as whole words are let through; no chat template uses any.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Prepare for ``tokenizer``, whose vocabulary is shared. Raises `TokenizerError` if it is too odd."""
        self._tokenizer = tokenizer
        backend = tokenizer.backend
        added = {} if backend.encode_special_tokens else backend.get_added_tokens_decoder()
        special = {
            token.content: token_id
            for token_id, token in added.items()
            if token.special and not token.single_word and token.content not in ALLOWED
        }
        nonce = f"{secrets.randbelow(10**24):024}"  # digits: no filter of a template changes them
        self._mark = f"@{nonce}@"
        self._stand_ins = {text: f"@{nonce}:{number}@" for number, text in enumerate(special)}
        self._beginnings = {text[:end] for text in special for end in range(1, len(text))}
        self._longest = max(map(len, special), default=0)
        self._spelled, self._written = _patterns(special, self._mark)
        second = _second_backend(tokenizer, added, self._stand_ins)
        self._plain = tokenizer.with_backend(second)
        self._ids = {
            second.token_to_id(self._stand_ins.get(token.content, token.content)): token_id
            for token_id, token in added.items()
        }
        unknown = {tokenizer.special_tokens.get("unk_token"), getattr(backend.model, "unk_token", None)}
        self._forbidden = {special[text] for text in special if text not in unknown} - self._ids.keys()
        self._normalizes = any(added[token_id].normalized for token_id in special.values())

    def mark(self, data: Any) -> Any:
        """Return a copy of plain data with the mark before each special token that is in its strings.

        Also before the beginning of one at a string's end: what comes next in the prompt could complete it.
        """
        if isinstance(data, str):
            return self._mark_text(data)
        if isinstance(data, dict):
            return {self._mark_text(key): self.mark(value) for key, value in data.items()}
        return [self.mark(item) for item in data] if isinstance(data, list) else data

    def encode(self, text: str) -> tuple[str, list[int]]:
        """Return what a template made of marked messages, without the marks, and its token ids.

        The ids are those of `Tokenizer.encode_chat` where messages spell no special token. Raises
        `InvalidRequestError` as that does, and if this tokenizer cannot take a special token for text.
        """
        # Where special tokens are looked for in normalized text, other texts may spell them as well.
        if self._mark not in text and not self._normalizes:
            return text, self._tokenizer.encode_chat(text)
        ids = self._plain.encode_chat(self._written.sub(self._rewritten, text))
        if not self._forbidden.isdisjoint(ids):
            raise InvalidRequestError(
                "A message spells a special token, and this model's tokenizer has no other way to say that.",
                param="messages",
            )
        return text.replace(self._mark, ""), [self._ids.get(token_id, token_id) for token_id in ids]

    def _mark_text(self, text: str) -> str:
        places = {match.start() for match in self._spelled.finditer(text)}
        ends = range(1, min(self._longest, len(text) + 1))
        places |= {len(text) - length for length in ends if text[-length:] in self._beginnings}
        if not places:
            return text
        return self._mark.join(text[start:end] for start, end in pairwise([0, *sorted(places), len(text)]))

    def _rewritten(self, match: re.Match[str]) -> str:
        """Return what a mark and what follows it, or a special token without a mark, is encoded as."""
        _, spelled, written = match.group(0, 1, 2)
        return spelled or "" if written is None else self._stand_ins[written]


def _patterns(texts: Iterable[str], mark: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of the places where a text begins, and of marks (with a text) and texts."""
    try:
        longest = _longest_of(sorted(texts)) or "(?!)"
        return re.compile(f"(?={longest})"), re.compile(f"{mark}({longest})?|({longest})")
    except RecursionError:
        raise TokenizerError("Too many of the tokenizer's special tokens begin with one another.") from None


def _longest_of(texts: list[str]) -> str:
    """Return a pattern of the longest of sorted texts that matches, which looks at each character once."""
    branches = []
    for _, group in groupby(filter(None, texts), key=lambda text: text[0]):
        alike = list(group)
        common = os.path.commonprefix(alike)  # noqa: RUF071  the characters in common
        branches.append(re.escape(common) + _longest_of([text[len(common) :] for text in alike]))
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if "" in texts else "")


def _second_backend(
    tokenizer: Tokenizer, added: Mapping[int, AddedToken], stand_ins: Mapping[str, str]
) -> tokenizers.Tokenizer:
    """Return one that shares the vocabulary, and in which ``stand_ins`` are in place of special tokens."""
    backend = tokenizer.backend
    second = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        second.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        second.pre_tokenizer = backend.pre_tokenizer
    # The library gives new tokens the ids from the vocabulary's size on, which gaps in the ids make taken.
    taken = tokenizer.vocab_size - backend.get_vocab_size(with_added_tokens=False)
    if taken > MAX_GAPS:
        raise TokenizerError("The tokenizer's ids are too far apart.")
    second.add_tokens([f"@{secrets.token_hex(8)}:{number}@" for number in range(taken)])
    second.add_tokens(
        [
            AddedToken(
                stand_ins.get(token.content, token.content),
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                single_word=token.single_word,
                normalized=token.normalized,
            )
            for token in added.values()
        ]
    )
    return second
