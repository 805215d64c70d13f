"""How much a tokenizer's own rules may make of a text, read from its JSON before the library acts on it.

A few lines of ``tokenizer.json`` can turn one letter into gigabytes: replacements in a chain, a long text put
in front, a template of many tokens. The library would abort the process. All numbers are the worst case.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tinyllm.artifacts.json_file import parse_object
from tinyllm.errors import CheckpointError, TokenizerError

__all__ = ["MAX_TEXT_BYTES", "Growth", "check_tokenizer_json", "text_growth"]

MAX_TEXT_BYTES: Final = 64 << 20
"""Most bytes that a text may become; the library needs about 17 bytes for each."""

MAX_FACTOR: Final = 1024
"""Real ones stay below: NFKC makes 11 bytes of 1, SentencePiece's character map 33; a few may be chained."""
MAX_DECODER_FACTOR: Final = 16
MAX_RULE_BYTES: Final = 1 << 20
"""Of one part's JSON; the largest real one is a character map of about 400 KB."""
MAX_LITERAL: Final = 4096
"""Characters of a pattern or of what replaces it."""
MAX_OBJECTS: Final = 1 << 17
"""JSON objects in the file, of which an added token is one: each costs about 900 bytes of memory."""
MAX_TEMPLATE: Final = 1 << 16
"""Token ids and characters that a post-processor puts around a text."""
MAX_COPIES: Final = 4
"""How often a post-processor may repeat the text; real ones have it once."""
MAX_BRACKETS: Final = 1 << 17
"""Nested brackets of one value; lists and objects that hold no others do not count."""

_UNICODE: Final[Mapping[str, int]] = {"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 2}
"""Most bytes of UTF-8 for one, by normalizer. Others than these and those of `_grow` add nothing."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A text of ``n`` bytes becomes ``factor * n + constant`` bytes at most."""

    factor: float = 1
    constant: float = 0

    def of(self, size: int) -> float:
        """Return the most bytes that a text of ``size`` bytes becomes."""
        return self.factor * size + self.constant

    def then(self, factor: float, constant: float = 0) -> Growth:
        """Return the growth of this and then another step."""
        return Growth(self.factor * factor, self.constant * factor + constant)


def check_tokenizer_json(data: bytes) -> None:
    """Check a ``tokenizer.json`` that the library is going to read. Raises `TokenizerError` over a limit."""
    if data.count(b"{") > MAX_OBJECTS:
        raise TokenizerError(f"tokenizer.json: more than {MAX_OBJECTS:,} objects, such as added tokens.")
    sections = _sections(data)
    rules = {
        name: _rules(sections[name])
        for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder")
        if sections.get(name, b"null") != b"null"
    }
    growth = text_growth(rules.get("normalizer"), None)
    if growth.of(len(sections.get("added_tokens", b""))) > MAX_TEXT_BYTES:  # they are normalized on loading
        raise TokenizerError("tokenizer.json: its normalizer makes too much of its added tokens.")
    text_growth(rules.get("normalizer"), rules.get("pre_tokenizer"))
    _check_decoder(rules.get("decoder"))
    _check_post_processor(rules.get("post_processor"))


def text_growth(normalizer: Mapping[str, Any] | None, pre_tokenizer: Mapping[str, Any] | None) -> Growth:
    """Return how much these two, given as in ``tokenizer.json``, make of a text.

    Raises `TokenizerError` if that is more than any real tokenizer would.
    """
    growth = Growth()
    for rule in (*_steps(normalizer), *_steps(pre_tokenizer)):
        growth = _grow(growth, rule)
        if growth.factor > MAX_FACTOR or growth.constant > MAX_TEXT_BYTES:
            raise TokenizerError("The tokenizer's rules make a text unreasonably long.")
    return growth


def _grow(growth: Growth, rule: Mapping[str, Any]) -> Growth:
    match rule["type"]:
        case "Replace":
            return _replaced(growth, rule)
        case "Prepend":
            return growth.then(1, _size(rule["prepend"]))
        case "Precompiled":
            return growth.then(_longest_mapping(rule["precompiled_charsmap"]))
        case "BertNormalizer":  # spaces around a Chinese character, accents apart, lower case
            return growth.then(6)
        case "ByteLevel":  # a character of two bytes for each byte, and a space before each piece
            return growth.then(4 if rule.get("add_prefix_space", True) else 2)
        case "Metaspace":
            return growth.then(1 + _size(rule["replacement"]), _size(rule["replacement"]))
        case "Split":
            _pattern(rule)
            return growth
        case kind:
            return growth.then(_UNICODE.get(kind, 1))


def _replaced(growth: Growth, rule: Mapping[str, Any]) -> Growth:
    content, least = _size(rule["content"]), _pattern(rule)
    if least:
        return growth.then(max(1, content / least))
    return growth.then(1 + content, content)  # what matches nothing at all matches everywhere


def _pattern(rule: Mapping[str, Any]) -> int:
    """Return the fewest bytes that a rule's pattern matches, as far as is known."""
    ((kind, pattern),) = rule["pattern"].items()
    size = _size(pattern)
    return size if kind == "String" else 0


def _size(literal: Any) -> int:
    if not isinstance(literal, str):
        raise TokenizerError("tokenizer.json: a pattern or a replacement is not text.")
    if len(literal) > MAX_LITERAL:
        raise TokenizerError(
            f"tokenizer.json: a pattern or a replacement has over {MAX_LITERAL:,} characters."
        )
    return len(literal.encode("utf-8", "surrogatepass"))


def _longest_mapping(charsmap: Any) -> int:
    """Return the most bytes that one is mapped to.

    SentencePiece's map is the size of a trie, the trie, and texts that end with a zero byte.
    """
    data = base64.b64decode(charsmap or "")
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, texts.split(b"\0")), default=0) or 1


def _check_decoder(decoder: Mapping[str, Any] | None) -> None:
    growth = Growth()
    for rule in _steps(decoder):
        if rule["type"] == "Replace":
            growth = _replaced(growth, rule)
    if growth.factor > MAX_DECODER_FACTOR:
        raise TokenizerError("The tokenizer's decoder makes a text unreasonably long.")


def _check_post_processor(processor: Mapping[str, Any] | None) -> None:
    """Count what templates add to one text, and how often they repeat it."""
    growth = Growth()
    for rule in _steps(processor):
        if rule["type"] == "TemplateProcessing":
            growth = growth.then(*_template(rule["single"], rule["special_tokens"]))
            if growth.factor > MAX_COPIES or growth.constant > MAX_TEMPLATE:
                raise TokenizerError("tokenizer.json: its post_processor adds too much to a text.")


def _template(pieces: list[Mapping[str, Any]], special: Mapping[str, Any]) -> tuple[int, int]:
    """Return how often the text is in the template, and what else there is: ids and characters."""
    copies = sum("Sequence" in piece for piece in pieces)
    cost = {name: len(token["ids"]) + sum(map(len, token["tokens"])) for name, token in special.items()}
    added = sum(cost.get(piece["SpecialToken"]["id"], 0) for piece in pieces if "SpecialToken" in piece)
    return copies, added


def _steps(rule: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Give the rules that are in a rule, in order."""
    if rule is None:
        return
    if not isinstance(rule, Mapping) or not isinstance(rule.get("type"), str):
        raise TokenizerError("tokenizer.json: a rule must be an object with a type.")
    if rule["type"] != "Sequence":
        yield rule
        return
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in rule.get(name, ()):
            yield from _steps(inner)


def _rules(section: bytes) -> dict[str, Any]:
    if len(section) > MAX_RULE_BYTES:
        raise TokenizerError(
            f"tokenizer.json: a part other than the vocabulary is over {MAX_RULE_BYTES:,} bytes."
        )
    try:
        return parse_object(section, "tokenizer.json")
    except CheckpointError as error:
        raise TokenizerError(str(error)) from None


# The file is large because of the vocabulary, which is passed over: JSON is read only as far as that needs.

_ITEM: Final = rb'"(?:[^"\\]++|\\.)*+"|[^"\[\]{}]++'
_RUN: Final = re.compile(rb"(?:%s|[\[{](?:%s)*+[\]}])*+" % (_ITEM, _ITEM), re.DOTALL)
"""Whatever has no bracket in brackets."""
_KEY: Final = re.compile(rb'\s*+("(?:[^"\\]++|\\.)*+")\s*+:\s*+', re.DOTALL)
_PLAIN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^\s,"\[\]{}]++', re.DOTALL)
_NEXT: Final = re.compile(rb"\s*+([,}])")


def _sections(data: bytes) -> dict[str, bytes]:
    """Return the JSON text of each field of an object, the model's left out."""
    sections: dict[str, bytes] = {}
    position = len(data) - len(data.lstrip())
    if data[position : position + 1] != b"{":
        raise _damaged()
    mark = b","
    position += 1
    while mark == b",":
        key = _KEY.match(data, position)
        if key is None:
            raise _damaged()
        name = next(iter(parse_object(b"{%s:0}" % key[1], "tokenizer.json")))
        end = _end_of_value(data, key.end())
        if name in sections:
            raise TokenizerError(f"tokenizer.json: {name[:40]!r} is there twice.")
        sections[name] = b"" if name == "model" else data[key.end() : end]
        after = _NEXT.match(data, end)
        if after is None:
            raise _damaged()
        mark, position = after[1], after.end()
    return sections


def _end_of_value(data: bytes, start: int) -> int:
    if plain := _PLAIN.match(data, start):
        return plain.end()
    position, depth = start, 0
    for _ in range(MAX_BRACKETS):
        bracket = data[position : position + 1]
        if bracket not in (b"[", b"{", b"]", b"}"):
            raise _damaged()
        depth += 1 if bracket in (b"[", b"{") else -1
        position += 1
        if depth == 0:
            return position
        run = _RUN.match(data, position)
        assert run is not None  # noqa: S101  it matches nothing, too
        position = run.end()
    raise TokenizerError("tokenizer.json: nested in too many brackets.")


def _damaged() -> TokenizerError:
    return TokenizerError("tokenizer.json is not a JSON object, or it is cut short.")
