"""Tokenizers from GGUF metadata: the vocabulary is in the file, the rules are known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tinyllm.artifacts.model import GGUFVocabulary
from tinyllm.errors import TokenizerError, UnsupportedModelError
from tinyllm.text.sentencepiece import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    USER_DEFINED,
    merges_from_scores,
    space_decoder,
)

__all__ = ["PRE_TOKENIZERS", "build_tokenizer"]

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_LLAMA3_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_HEAD = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_LLAMA3 = rf"{_LLAMA3_HEAD}|\p{{N}}{{1,3}}{_LLAMA3_TAIL}"
_QWEN2 = rf"{_LLAMA3_HEAD}|\p{{N}}{_LLAMA3_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

PRE_TOKENIZERS: Final[Mapping[str, Sequence[str]]] = {
    "default": _DEFAULT,
    "gpt-2": (_GPT2,),
    "olmo": (_GPT2,),
    "smollm": (_GPT2,),  # as transformers reads such files; llama.cpp takes digits apart first
    "starcoder": (_DIGIT, _GPT2),
    "refact": (_DIGIT, _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "tekken": (_TEKKEN,),
}
"""What splits text into words, by ``tokenizer.ggml.pre``; each rule splits what the one before left."""

_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""A word that is in the vocabulary is that token, even if no merges lead to it."""
_NFC: Final = frozenset({"qwen2", "deepseek-r1-qwen"})


def build_tokenizer(vocabulary: GGUFVocabulary, config: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that ``vocabulary`` describes; ``config`` is as ``tokenizer_config.json``.

    Raises `UnsupportedModelError` for a model or ``pre`` it does not know, `TokenizerError` for a vocabulary
    that contradicts itself.
    """
    _check(vocabulary)
    if vocabulary.model == "gpt2":
        backend = _byte_level(vocabulary)
    elif vocabulary.model == "llama":
        backend = _sentencepiece(vocabulary)
    else:
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {vocabulary.model!r:.60}; "
            "gpt2 (byte-level BPE) and llama (SentencePiece) are supported."
        )
    backend.add_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in zip(vocabulary.tokens, _kinds(vocabulary), strict=True)
            if token and kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )
    return backend


def _kinds(vocabulary: GGUFVocabulary) -> Sequence[int]:
    return vocabulary.token_types or (NORMAL,) * len(vocabulary.tokens)


def _check(vocabulary: GGUFVocabulary) -> None:
    size = len(vocabulary.tokens)
    if not size:
        raise TokenizerError("tokenizer.ggml.tokens is empty.")
    if len(set(vocabulary.tokens)) != size:
        raise TokenizerError("tokenizer.ggml.tokens has the same token twice.")
    if vocabulary.token_types and len(vocabulary.token_types) != size:
        raise TokenizerError(
            f"tokenizer.ggml.token_type has {len(vocabulary.token_types)} entries for {size} tokens."
        )
    if any(len(token) > 4096 for token in vocabulary.tokens):
        raise TokenizerError("tokenizer.ggml.tokens has a token of more than 4096 characters.")


def _byte_level(vocabulary: GGUFVocabulary) -> Tokenizer:
    pre = vocabulary.pre or "default"
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"tokenizer.ggml.pre is {pre!r:.60}, whose rules are not known here. Known: "
            f"{', '.join(sorted(PRE_TOKENIZERS))}. A safetensors directory with tokenizer.json works for any."
        )
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = [_merge(line, ids) for line in vocabulary.merges]
    model = models.BPE(vocab=ids, merges=merges, ignore_merges=pre in _WHOLE_WORDS_FIRST)
    backend = Tokenizer(model)
    if pre in _NFC:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in PRE_TOKENIZERS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=vocabulary.add_space_prefix, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _merge(line: str, ids: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right or any(part not in ids for part in (left, right, left + right)):
        raise TokenizerError(
            f"tokenizer.ggml.merges: {line!r:.80} joins tokens that are not in the vocabulary."
        )
    return left, right


def _sentencepiece(vocabulary: GGUFVocabulary) -> Tokenizer:
    tokens, kinds = vocabulary.tokens, _kinds(vocabulary)
    if len(vocabulary.scores) != len(tokens):
        raise TokenizerError(
            f"tokenizer.ggml.scores has {len(vocabulary.scores)} entries for {len(tokens)} tokens."
        )
    scored = zip(tokens, vocabulary.scores, kinds, strict=True)
    scores = {token: score for token, score, kind in scored if kind in (NORMAL, USER_DEFINED)}
    has_bytes = BYTE in kinds
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == UNKNOWN), None)
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges_from_scores(scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    prepend = [normalizers.Prepend(SPACE)] if vocabulary.add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", SPACE)])
    backend.decoder = space_decoder(adds_prefix=vocabulary.add_space_prefix, has_bytes=has_bytes)
    return backend
