"""`Tokenizer`: text to token ids and back, from whatever files the model has."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import tokenizers
from tokenizers import processors

from tinyllm.errors import InvalidRequestError, TinyLLMError, TokenizerError
from tinyllm.text.decoders import StreamingDecoder, plan_decoder
from tinyllm.text.growth import MAX_TEXT_BYTES, Growth, check_tokenizer_json, text_growth

if TYPE_CHECKING:
    from tinyllm.artifacts.model import ModelArtifacts, TokenizerSource

__all__ = ["Tokenizer", "eos_token_ids", "load_tokenizer"]

MAX_FILE_BYTES: Final = 128 << 20
MAX_TOKEN_ID: Final = 2**32 - 1
MAX_TOKEN_LENGTH: Final = 4096
"""Characters of one token. Real ones stay far below; longer ones would make gigabytes of an answer."""
LONG_TEXT: Final = 4096
"""Text of more characters is encoded without the interpreter's lock, so that other threads go on."""

_SPECIAL_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Tokenizer:
    """Text to token ids and back, equal to what ``transformers`` gives for the same files.

    Thread-safe: nothing changes after it is made.
    """

    def __init__(self, backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
        """Wrap ``backend``, which is finished: its added tokens and its post-processor are in place."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._plan = plan_decoder(backend.decoder.__getstate__() if backend.decoder else None)
        self._growth = _growth_of(backend)
        added = backend.get_added_tokens_decoder()
        self.special_tokens: dict[str, str] = dict(special_tokens)
        """Names to texts, such as ``bos_token`` to ``<s>``: what chat templates see."""
        self.special_token_ids: frozenset[int] = frozenset(i for i, token in added.items() if token.special)
        """Ids whose text is left out by ``skip_special_tokens``."""
        self._special_texts = {i: token.content for i, token in added.items() if token.special}
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if max(map(len, vocabulary), default=0) > MAX_TOKEN_LENGTH:
            raise TokenizerError(f"The tokenizer has a token of over {MAX_TOKEN_LENGTH:,} characters.")
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        """One more than the largest id it can produce."""
        self.bos_token_id: int | None = self._id_of("bos_token")
        self.eos_token_id: int | None = self._id_of("eos_token")
        self._adds_bos = self._finds_added_bos()

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The library's own object, for `UserText`. Not to be changed."""
        return self._backend

    def with_backend(self, backend: tokenizers.Tokenizer) -> Tokenizer:
        """Return one that encodes by another backend of the same vocabulary, for `UserText`."""
        other = copy.copy(self)
        other._backend = backend
        return other

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of ``text``. Text that spells a special token becomes that token.

        With ``add_special_tokens`` the tokens that the tokenizer itself puts around a text are there; when
        that is BOS, and the text already begins with BOS, there is still only one. Text that a chat template
        made has its special tokens in it: use `encode_chat`. Raises `InvalidRequestError` if ``text`` is not
        Unicode text (a lone surrogate), or if the tokenizer's rules may make more than 64 MiB of it.
        """
        if not isinstance(text, str):
            raise InvalidRequestError(f"text must be a string, not {type(text).__name__}.")
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"The text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}; "
                "it is not valid Unicode."
            ) from None
        if self._growth.of(size) > MAX_TEXT_BYTES:
            raise InvalidRequestError(f"A text of {size:,} bytes is too long for this tokenizer.")
        with _contained(InvalidRequestError, "The tokenizer failed on this text"):
            ids = self._encode(text, add_special_tokens)
        if add_special_tokens and self._adds_bos and ids[:2] == [self.bos_token_id] * 2:
            return ids[1:]
        return ids

    def encode_chat(self, text: str) -> list[int]:
        """Return the token ids of text that a chat template rendered: nothing is added to it."""
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``token_ids``; ids that stand for no token have no text.

        Raises `InvalidRequestError` when one is not an integer from 0 to 2**32 - 1.
        """
        ids = list(token_ids)
        for token_id in ids:
            if type(token_id) is not int or not 0 <= token_id <= MAX_TOKEN_ID:
                raise InvalidRequestError(f"{token_id!r:.40} is not a token id.")
        with _contained(InvalidRequestError, "The tokenizer failed on these token ids"):
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def token(self, token_id: int) -> str:
        """Return the text of one token alone, as shown to people: broken characters show as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the exact bytes that one token stands for; none when there is no such token."""
        if (special := self._special_texts.get(token_id)) is not None:
            return special.encode()
        piece = self.piece(token_id)
        return b"" if piece is None else self._plan.token_bytes(piece)

    def piece(self, token_id: int) -> str | None:
        """Return the token as the vocabulary spells it, such as ``Ġthe`` or ``▁the``; None: no such token."""
        return self._backend.id_to_token(token_id) if 0 <= token_id <= MAX_TOKEN_ID else None

    def start_decoding(self) -> StreamingDecoder:
        """Begin a text that is decoded `piece` by `piece`; see `IncrementalDetokenizer`."""
        return self._plan.start()

    def save(self, directory: Path) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, which ``transformers`` and this read."""
        self._backend.save(str(directory / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        text = json.dumps(config | self.special_tokens, ensure_ascii=False, indent=2)
        (directory / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) <= LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        # Of the library's calls, only those for batches release the lock.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self._backend.token_to_id(text)

    def _finds_added_bos(self) -> bool:
        if self.bos_token_id is None:
            return False
        plain, full = (self._backend.encode("a", add_special_tokens=added).ids for added in (False, True))
        return full[:1] == [self.bos_token_id] and plain[:1] != [self.bos_token_id]


def load_tokenizer(source: TokenizerSource) -> Tokenizer:
    """Read a tokenizer from ``tokenizer.json``, a SentencePiece model or GGUF metadata.

    Raises `TokenizerError` when its files are damaged, `UnsupportedModelError` when they are of a kind that
    is not supported.
    """
    with _contained(TokenizerError, "The tokenizer's files are damaged"):
        config: Mapping[str, Any] = source.config
        if source.kind == "gguf":
            from tinyllm.text.gguf_vocabulary import build_tokenizer

            if source.vocabulary is None:
                raise TokenizerError("The GGUF file has no tokenizer (tokenizer.ggml.tokens).")
            backend = build_tokenizer(source.vocabulary, config)
        elif source.kind == "sentencepiece":
            from tinyllm.text.sentencepiece import read_sentencepiece

            backend, named = read_sentencepiece(_read(source.path), config)
            config = {**named, **config}
        else:
            data = _read(source.path)
            check_tokenizer_json(data)
            backend = tokenizers.Tokenizer.from_buffer(data)
        special_tokens = _special_tokens(config)
        _add_tokens(backend, config, special_tokens)
        if source.kind != "tokenizer.json":
            _add_bos_and_eos(backend, config, special_tokens)
        backend.encode_special_tokens = bool(config.get("split_special_tokens", False))
        return Tokenizer(backend, special_tokens)


def eos_token_ids(artifacts: ModelArtifacts, tokenizer: Tokenizer | None) -> frozenset[int]:
    """Return every id that ends a text: of ``config.json``, ``generation_config.json`` and the tokenizer."""
    own = () if tokenizer is None or tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return frozenset(artifacts.eos_token_ids) | frozenset(own)


def _read(path: Path | None) -> bytes:
    """Read a tokenizer file whole, if it is of a sane size."""
    if path is None or not path.is_file():
        raise TokenizerError("The tokenizer's file is missing.")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise TokenizerError(f"{path.name}: cannot be read ({error.strerror}).") from None
    if len(data) > MAX_FILE_BYTES:
        raise TokenizerError(f"{path.name}: larger than {MAX_FILE_BYTES >> 20} MiB; this is no tokenizer.")
    return data


def _text_of(token: object) -> str | None:
    """Return the text of a token in ``tokenizer_config.json``: a string, or an object with ``content``."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if text is not None and not isinstance(text, str):
        raise TokenizerError(
            f"tokenizer_config.json: a special token must be text, not {type(text).__name__}."
        )
    return text


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: _text_of(config.get(name)) for name in _SPECIAL_NAMES}
    return {name: text for name, text in texts.items() if text}


def _added_token(token: object, *, special: bool) -> tokenizers.AddedToken:
    """Make an added token of its description; its ``special`` is true if it says so or ``special`` is."""
    flags: Mapping[str, Any] = token if isinstance(token, Mapping) else {}
    special = special or bool(flags.get("special", False))
    return tokenizers.AddedToken(
        _text_of(token) or "",
        special=special,
        normalized=bool(flags.get("normalized", not special)),
        **{name: bool(flags.get(name, False)) for name in ("single_word", "lstrip", "rstrip")},
    )


def _add_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Add the tokens that ``tokenizer_config.json`` names and the tokenizer does not have yet."""
    declared = config.get("added_tokens_decoder") or {}
    in_order = [declared[key] for key in sorted(declared, key=int)]
    wanted = [_added_token(token, special=_text_of(token) in special_tokens.values()) for token in in_order]
    known = {token.content: repr(token) for token in backend.get_added_tokens_decoder().values()}
    missing = [token for token in wanted if token.content and known.get(token.content) != repr(token)]
    seen = {*known, *(token.content for token in missing)}
    more = [config.get(name) for name in special_tokens]
    for name in ("additional_special_tokens", "extra_special_tokens"):
        extra = config.get(name) or []
        more += list(extra.values() if isinstance(extra, Mapping) else extra)
    for token in more:
        text = _text_of(token)
        if text and text not in seen:
            missing.append(_added_token(token, special=True))
            seen.add(text)
    size = sum(len(token.content.encode()) for token in missing)
    if _growth_of(backend).of(size) > MAX_TEXT_BYTES:  # the library normalizes them
        raise TokenizerError("tokenizer_config.json: the normalizer makes too much of its added tokens.")
    if missing:
        backend.add_tokens(missing)


def _growth_of(backend: tokenizers.Tokenizer) -> Growth:
    """Return how much the library may make of a text. Raises `TokenizerError` if that is unreasonable."""
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(getattr(backend.model, name, None) or "") > MAX_TOKEN_LENGTH:
            raise TokenizerError(f"The tokenizer's {name} is too long.")
    parts = (backend.normalizer, backend.pre_tokenizer)
    normalizer, pre_tokenizer = (json.loads(part.__getstate__()) if part else None for part in parts)
    return text_growth(normalizer, pre_tokenizer)


def _add_bos_and_eos(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Put BOS and EOS around each text if ``add_bos_token`` and ``add_eos_token`` say so.

    A ``tokenizer.json`` has its own rule, which holds whatever the config says, as in ``transformers``.
    """
    bos = special_tokens.get("bos_token") if config.get("add_bos_token") else None
    eos = special_tokens.get("eos_token") if config.get("add_eos_token") else None
    around = [token for token in (bos, eos) if token is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=[*([bos] if bos else []), "$A", *([eos] if eos else [])],
        pair=None,
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys(around)],
    )


@contextmanager
def _contained(error: type[TinyLLMError], what: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises, Rust panics too, into ``error``."""
    try:
        yield
    except (TinyLLMError, MemoryError):
        raise
    except Exception as cause:
        raise error(f"{what}: {str(cause)[:300]}") from None
    except BaseException as cause:
        # A Rust panic is a BaseException whose class cannot be imported.
        if type(cause).__name__ != "PanicException":
            raise
        raise error(f"{what}: the tokenizers library panicked.") from None
