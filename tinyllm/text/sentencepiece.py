"""Tokenizers from a SentencePiece ``tokenizer.model``, made into the form that every other source has.

The file is a protobuf message (``ModelProto``); the few fields that matter are read here, within the bounds
of the file, so that neither protobuf nor sentencepiece is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tinyllm.errors import TokenizerError, UnsupportedModelError

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "SPACE",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "merges_from_scores",
    "read_sentencepiece",
    "space_decoder",
]

# Kinds of piece, as SentencePiece numbers them, and GGUF after it.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE: Final = "▁"

MAX_PIECES: Final = 1 << 19
MAX_SPELLED_CHARACTERS: Final = 4 << 20
"""Of all pieces together: merges are found by splitting every piece everywhere."""


@dataclass(slots=True)
class _Piece:
    text: str = ""
    score: float = 0.0
    kind: int = NORMAL


@dataclass(slots=True)
class _Model:
    """The fields of ``ModelProto`` that matter, with SentencePiece's own defaults."""

    pieces: list[_Piece] = field(default_factory=list)
    model_type: int = UNIGRAM
    byte_fallback: bool = False
    space_is_suffix: bool = False
    ids: dict[str, int] = field(default_factory=lambda: {"unk_token": 0, "bos_token": 1, "eos_token": 2})
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True


def read_sentencepiece(data: bytes, config: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """Convert a ``tokenizer.model``; also return what it says of ``tokenizer_config.json``'s fields.

    With ``legacy`` in ``config`` (the default, as in ``transformers``) each stretch of text between special
    tokens gets its own space in front; without, only the beginning does. Raises `TokenizerError` for a
    damaged file, `UnsupportedModelError` for kinds other than BPE and unigram.
    """
    model = _parse(data)
    _check(model)
    backend = Tokenizer(_bpe(model) if model.model_type == BPE else _unigram(model))
    _set_normalizer(backend, model, legacy=bool(config.get("legacy", True)))
    backend.decoder = space_decoder(adds_prefix=model.add_dummy_prefix, has_bytes=model.byte_fallback)
    backend.add_tokens(
        [
            AddedToken(piece.text, special=piece.kind != USER_DEFINED, normalized=False)
            for piece in model.pieces
            if piece.kind in (CONTROL, UNKNOWN, USER_DEFINED)
        ]
    )
    named: dict[str, Any] = {
        name: model.pieces[i].text for name, i in model.ids.items() if 0 <= i < len(model.pieces)
    }
    return backend, named | {"add_bos_token": "bos_token" in named, "add_eos_token": False}


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the merges, first to last, by which BPE makes the same choices as SentencePiece by scores.

    SentencePiece joins the neighbours whose union has the highest score, so each piece can arise from each
    pair of pieces that spell it.
    """
    if sum(map(len, scores)) > MAX_SPELLED_CHARACTERS:
        raise TokenizerError(f"The vocabulary has more than {MAX_SPELLED_CHARACTERS:,} characters.")
    merges: list[tuple[str, str]] = []
    for text in sorted(scores, key=lambda piece: -scores[piece]):
        splits = ((text[:i], text[i:]) for i in range(1, len(text)))
        merges += [(left, right) for left, right in splits if left in scores and right in scores]
    return merges


def space_decoder(*, adds_prefix: bool, has_bytes: bool) -> decoders.Decoder:
    """Turn ``▁`` and byte tokens back into text; without the space that was put in front, if one was."""
    bytes_back = [decoders.ByteFallback()] if has_bytes else []
    strip = [decoders.Strip(" ", 1, 0)] if adds_prefix else []
    return decoders.Sequence([decoders.Replace(SPACE, " "), *bytes_back, decoders.Fuse(), *strip])


def _check(model: _Model) -> None:
    if not model.pieces:
        raise TokenizerError("tokenizer.model has no pieces: it is not a SentencePiece model, or is cut off.")
    if len({piece.text for piece in model.pieces}) != len(model.pieces):
        raise TokenizerError("tokenizer.model has the same piece twice.")
    if any(not piece.text or len(piece.text) > 1024 for piece in model.pieces):
        raise TokenizerError("tokenizer.model has a piece that is empty or longer than 1024 characters.")
    if model.model_type not in (UNIGRAM, BPE):
        raise UnsupportedModelError("tokenizer.model is neither BPE nor unigram; only these are supported.")
    if model.space_is_suffix:
        raise UnsupportedModelError("tokenizer.model puts spaces after words; this is not supported.")
    if model.model_type == UNIGRAM and any(piece.kind == UNUSED for piece in model.pieces):
        raise UnsupportedModelError("tokenizer.model is unigram with unused pieces; this is not supported.")


def _unknown(model: _Model) -> int:
    unknown = next((i for i, piece in enumerate(model.pieces) if piece.kind == UNKNOWN), None)
    if unknown is None:
        raise TokenizerError("tokenizer.model has no piece for unknown text.")
    return unknown


def _bpe(model: _Model) -> models.Model:
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind in (NORMAL, USER_DEFINED)}
    return models.BPE(
        vocab={piece.text: i for i, piece in enumerate(model.pieces)},
        merges=merges_from_scores(scores),
        unk_token=model.pieces[_unknown(model)].text,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _unigram(model: _Model) -> models.Model:
    return models.Unigram(
        [(piece.text, piece.score) for piece in model.pieces], _unknown(model), model.byte_fallback
    )


def _set_normalizer(backend: Tokenizer, model: _Model, *, legacy: bool) -> None:
    """Normalise in SentencePiece's order: characters, spaces away, space in front, spaces to ``▁``.

    The library's character map differs from SentencePiece's on some sequences with combining marks;
    ``transformers`` uses it too.
    """
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    mark = SPACE if model.escape_whitespaces else " "
    if model.add_dummy_prefix and legacy:
        steps.append(normalizers.Prepend(mark))
    elif model.add_dummy_prefix:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(mark, prepend_scheme="first", split=False)
    if model.escape_whitespaces:
        steps.append(normalizers.Replace(" ", SPACE))
    if model.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(rf"{SPACE}+\z"), ""))
    backend.normalizer = normalizers.Sequence(steps)


# The protobuf reader: https://protobuf.dev/programming-guides/encoding


def _parse(data: bytes) -> _Model:
    model = _Model()
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                model.pieces.append(_parse_piece(value))
                if len(model.pieces) > MAX_PIECES:
                    raise TokenizerError(f"tokenizer.model has more than {MAX_PIECES:,} pieces.")
            case 2, bytes():
                _parse_trainer(value, model)
            case 3, bytes():
                _parse_normalizer(value, model)
    return model


def _parse_piece(data: bytes) -> _Piece:
    piece = _Piece()
    for number, value in _fields(data):
        match number, value:
            case 1, bytes():
                piece.text = _text(value)
            case 2, float():
                piece.score = value
            case 3, int():
                piece.kind = value
    if not -1e30 < piece.score < 1e30:
        raise TokenizerError(f"tokenizer.model: the score of piece {piece.text!r:.60} is not a number.")
    return piece


def _parse_trainer(data: bytes, model: _Model) -> None:
    names = {40: "unk_token", 41: "bos_token", 42: "eos_token"}
    for number, value in _fields(data):
        if not isinstance(value, int):
            continue
        if number == 3:
            model.model_type = value
        elif number == 24:
            model.space_is_suffix = bool(value)
        elif number == 35:
            model.byte_fallback = bool(value)
        elif number in names:
            model.ids[names[number]] = value - (1 << 64) if value >> 63 else value


def _parse_normalizer(data: bytes, model: _Model) -> None:
    for number, value in _fields(data):
        match number, value:
            case 2, bytes():
                model.charsmap = value
            case 3, int():
                model.add_dummy_prefix = bool(value)
            case 4, int():
                model.remove_extra_whitespaces = bool(value)
            case 5, int():
                model.escape_whitespaces = bool(value)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"tokenizer.model: a piece is not UTF-8 ({data[:20]!r}).") from None


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Give the fields of a message: number, and an int, a float (32 bits) or bytes by its wire type."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        size = {1: 8, 5: 4}.get(wire_type)
        if wire_type == 2:
            size, position = _varint(data, position)
        if size is None:
            raise TokenizerError("tokenizer.model is damaged: not a SentencePiece model (wire type).")
        chunk = data[position : position + size]
        if len(chunk) != size:
            raise TokenizerError("tokenizer.model is damaged: it ends inside a field.")
        position += size
        yield number, struct.unpack("<f", chunk)[0] if wire_type == 5 else chunk


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(10):
        if position >= len(data):
            raise TokenizerError("tokenizer.model is damaged: it ends inside a number.")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value & ((1 << 64) - 1), position
    raise TokenizerError("tokenizer.model is damaged: a number is too long.")
