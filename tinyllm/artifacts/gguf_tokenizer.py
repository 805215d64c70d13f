"""Tokenizer, special tokens and chat templates from GGUF metadata, as the files of the Hub have them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tinyllm.artifacts.files import MIB
from tinyllm.artifacts.json_file import Fields, shorten
from tinyllm.artifacts.model import GGUFVocabulary, TokenizerSource
from tinyllm.errors import TokenizerError, UnsupportedModelError

__all__ = ["chat_templates", "generation_values", "special_token_ids", "tokenizer_source"]

_PREFIX: Final = "tokenizer.ggml."
_MAX_TOKEN_ID: Final = (1 << 31) - 1
_MAX_TEMPLATES: Final = 32
_TEMPLATE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

_SPECIAL: Final = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Name in ``tokenizer_config.json`` -> key."""

_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
"""Ends of sequence, of turn and of message: each ends an answer."""

_BPE_WITH_BOS: Final = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken", "pixtral"})
"""Byte-level vocabularies that llama.cpp puts a BOS before, when the file does not say."""


def tokenizer_source(metadata: Fields) -> TokenizerSource | None:
    """Return the tokenizer; None if the file has none.

    Raises `UnsupportedModelError` for a kind that is not supported, `TokenizerError` if it is damaged.
    """
    model = metadata.string(f"{_PREFIX}model", "none")
    if model in ("none", "no_vocab"):
        return None
    if model not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"{metadata.file}: tokenizer {shorten(model)} is not supported, "
            "only gpt2 (byte-level BPE) and llama (SentencePiece)"
        )
    tokens = _strings(metadata, "tokens")
    if not tokens:
        raise _fault(metadata, "tokens", "is missing or empty")
    vocabulary = GGUFVocabulary(
        model=model,
        pre=metadata.string(f"{_PREFIX}pre", "default"),
        tokens=tokens,
        token_types=_numbers(metadata, "token_type", int, len(tokens)),
        scores=_numbers(metadata, "scores", float, len(tokens)),
        merges=_strings(metadata, "merges"),
        add_space_prefix=metadata.boolean(f"{_PREFIX}add_space_prefix", model == "llama"),
    )
    return TokenizerSource("gguf", None, _config(metadata, vocabulary), vocabulary)


def special_token_ids(metadata: Fields) -> dict[str, int | list[int]]:
    """Return ``bos_token_id``, ``eos_token_id`` (one, or all ends) and ``pad_token_id``, where known."""
    ids = {key: _token_id(metadata, key) for key in (*_SPECIAL.values(), *_ENDS)}
    ends = list(dict.fromkeys(ids[key] for key in _ENDS if ids[key] is not None))
    values: dict[str, Any] = {
        "bos_token_id": ids["bos_token_id"],
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": ids["padding_token_id"],
    }
    return {name: value for name, value in values.items() if value is not None}


def generation_values(metadata: Fields) -> dict[str, Any]:
    """Return the fields of ``generation_config.json``: special tokens, and the sampling that is advised."""
    prefix = "general.sampling."
    values: dict[str, Any] = {
        "temperature": metadata.values.get(f"{prefix}temp"),
        "top_k": metadata.values.get(f"{prefix}top_k"),
        "top_p": metadata.values.get(f"{prefix}top_p"),
        "min_p": metadata.values.get(f"{prefix}min_p"),
        "repetition_penalty": metadata.values.get(f"{prefix}penalty_repeat"),
    }
    advised = {name: value for name, value in values.items() if value is not None}
    return special_token_ids(metadata) | ({"do_sample": True} | advised if advised else {})


def chat_templates(metadata: Fields) -> dict[str, str]:
    """Return Jinja sources by name; ``default`` is the ordinary one. Raises `CheckpointError`."""
    names = metadata.sequence("tokenizer.chat_templates", [])
    if len(names) > _MAX_TEMPLATES:
        raise metadata.fault("tokenizer.chat_templates", f"names more than {_MAX_TEMPLATES} templates")
    for name in names:
        if not isinstance(name, str) or not _TEMPLATE_NAME.fullmatch(name):  # it becomes a file's name
            raise metadata.fault("tokenizer.chat_templates", f"must be plain names, not {shorten(name)}")
    templates = {name: metadata.string(f"tokenizer.chat_template.{name}") for name in names}
    if "tokenizer.chat_template" in metadata.values:
        templates["default"] = metadata.string("tokenizer.chat_template")
    for name, source in templates.items():
        if len(source) > MIB:
            raise metadata.fault("tokenizer.chat_template", f"{shorten(name)} has over {MIB:,} characters")
    return templates


def _config(metadata: Fields, vocabulary: GGUFVocabulary) -> dict[str, Any]:
    """Return the fields of the ``tokenizer_config.json``."""
    config: dict[str, Any] = {}
    for name, key in _SPECIAL.items():
        token_id = _token_id(metadata, key)
        if token_id is None:
            continue
        if token_id >= len(vocabulary.tokens):
            raise _fault(metadata, key, f"is {token_id}, but there are only {len(vocabulary.tokens)} tokens")
        config[name] = vocabulary.tokens[token_id]
    bos_by_default = vocabulary.model == "llama" or vocabulary.pre in _BPE_WITH_BOS
    config["add_bos_token"] = metadata.boolean(f"{_PREFIX}add_bos_token", bos_by_default)
    config["add_eos_token"] = metadata.boolean(f"{_PREFIX}add_eos_token", False)
    config["clean_up_tokenization_spaces"] = False
    return config


def _token_id(metadata: Fields, key: str) -> int | None:
    name = _PREFIX + key
    # Old converters wrote -1 (as an unsigned number) for "none".
    if metadata.values.get(name) in (None, -1, 0xFFFF_FFFF):
        return None
    return metadata.integer(name, minimum=0, maximum=_MAX_TOKEN_ID)


def _strings(metadata: Fields, key: str) -> tuple[str, ...]:
    values = metadata.sequence(_PREFIX + key, [])
    if not all(isinstance(value, str) for value in values):
        raise _fault(metadata, key, "must be an array of strings")
    return tuple(values)


def _numbers(metadata: Fields, key: str, kind: type, count: int) -> tuple[Any, ...]:
    """Read an array that is either missing or as long as the tokens."""
    values: Sequence[Any] = metadata.sequence(_PREFIX + key, [])
    if not all(type(value) is kind for value in values):
        raise _fault(metadata, key, f"must be an array of {kind.__name__}")
    if values and len(values) != count:
        raise _fault(metadata, key, f"has {len(values)} elements for {count} tokens")
    return tuple(values)


def _fault(metadata: Fields, key: str, message: str) -> TokenizerError:
    return TokenizerError(f"{metadata.file}: {_PREFIX}{key} {message}")
