"""How tokens become text one at a time, exactly as the tokenizer's decoder does it for all of them at once.

A tokenizer's decoder is a chain of steps over a list of token strings. Here each step takes one string at a
time and gives back the strings that are final, so that a stream costs the same for every token. A step that
needs to see what follows (half a character) keeps it until it knows; `flush` says that nothing follows.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tinyllm.errors import TokenizerError, UnsupportedModelError

__all__ = ["DecoderPlan", "StreamingDecoder", "byte_of_character", "plan_decoder"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BROKEN = "\ufffd"


class Step(Protocol):
    """One step of a decoder, over a stream of strings."""

    def push(self, token: str) -> list[str]:
        """Take the next string, and return those that are final now."""
        ...

    def flush(self) -> list[str]:
        """Return what was kept back: nothing follows."""
        ...


def byte_of_character() -> dict[str, int]:
    """Return the byte that each character stands for in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 characters stand for themselves; others get characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHARACTER = byte_of_character()


def _byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; one with a foreign character (an added token) is itself."""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()


class _ByteLevel:
    """All tokens' bytes together are UTF-8; what is not shows as U+FFFD."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: str) -> list[str]:
        return [self._utf8.decode(_byte_level_bytes(token))]

    def flush(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _ByteFallback:
    """A run of byte tokens is one string if all of it is UTF-8, else one U+FFFD for each byte.

    So a run is kept until it ends, or until it cannot be UTF-8 any more.
    """

    def __init__(self) -> None:
        self._text: str
        self._num_kept: int
        self._is_broken: bool
        self._begin_run()

    def push(self, token: str) -> list[str]:
        match = _BYTE_TOKEN.fullmatch(token)
        if match is None:
            return [*self.flush(), token]
        if self._is_broken:
            return [_BROKEN]
        self._num_kept += 1
        try:
            self._text += self._utf8.decode(bytes.fromhex(match[1]))
        except UnicodeDecodeError:
            self._is_broken, self._text = True, ""
            return [_BROKEN] * self._num_kept
        return []

    @property
    def num_whole(self) -> int:
        """Whole characters in the run that is kept, as far as it is UTF-8."""
        return len(self._text)

    def flush(self) -> list[str]:
        kept = [] if self._is_broken or not self._num_kept else self._kept()
        self._begin_run()
        return kept

    def _begin_run(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._num_kept = 0
        self._is_broken = False

    def _kept(self) -> list[str]:
        try:
            self._utf8.decode(b"", final=True)
        except UnicodeDecodeError:
            return [_BROKEN] * self._num_kept
        return [self._text]


@dataclass(slots=True)
class _Replace:
    """Every ``pattern`` becomes ``content``."""

    pattern: str
    content: str

    def push(self, token: str) -> list[str]:
        return [token.replace(self.pattern, self.content)]

    def flush(self) -> list[str]:
        return []


@dataclass(slots=True)
class _Metaspace:
    """The space mark becomes a space; in the first token it is dropped, unless no space was put in front."""

    mark: str
    drops_first: bool
    is_fused: bool

    def push(self, token: str) -> list[str]:
        space = "" if self.drops_first else " "
        self.drops_first = self.drops_first and self.is_fused
        return [token.replace(self.mark, space)]

    def flush(self) -> list[str]:
        return []


@dataclass(slots=True)
class _StripLeft:
    """Up to ``count`` times ``content`` is taken from the front: of each token, or of a fused text."""

    content: str
    count: int
    is_fused: bool
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.count

    def push(self, token: str) -> list[str]:
        while self.left and token.startswith(self.content):
            token = token.removeprefix(self.content)
            self.left -= 1
        if not self.is_fused:
            self.left = self.count
        elif token:
            self.left = 0
        return [token]

    def flush(self) -> list[str]:
        return []


@dataclass(slots=True)
class _SpaceBetween:
    """A tokenizer without a decoder: tokens with a space between them."""

    is_first: bool = True

    def push(self, token: str) -> list[str]:
        space = "" if self.is_first else " "
        self.is_first = False
        return [space + token]

    def flush(self) -> list[str]:
        return []


class StreamingDecoder:
    """The steps of a decoder, in the state they have after the tokens pushed so far."""

    def __init__(self, steps: list[Step]) -> None:
        self._steps = steps

    def push(self, token: str) -> str:
        """Take the next token, and return the text that is final now."""
        texts = [token]
        for step in self._steps:
            texts = [after for before in texts for after in step.push(before)]
        return "".join(texts)

    @property
    def num_whole(self) -> int:
        """Whole characters that are kept back because what follows could still break them."""
        return sum(step.num_whole for step in self._steps if isinstance(step, _ByteFallback))

    def flush(self) -> str:
        """Return the text that was kept back: nothing follows."""
        texts: list[str] = []
        for step in self._steps:
            texts = [after for before in texts for after in step.push(before)] + step.flush()
        return "".join(texts)


@dataclass(frozen=True, slots=True)
class DecoderPlan:
    """What a tokenizer's decoder does, and how to make it anew for each stream."""

    steps: tuple[Callable[[], Step], ...]
    is_byte_level: bool = False
    has_byte_fallback: bool = False
    replacements: tuple[tuple[str, str], ...] = ()

    def start(self) -> StreamingDecoder:
        """Begin a new text."""
        return StreamingDecoder([step() for step in self.steps])

    def token_bytes(self, token: str) -> bytes:
        """Return the bytes that one token stands for inside a text."""
        if self.is_byte_level:
            return _byte_level_bytes(token)
        if self.has_byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        return token.encode()


def plan_decoder(state: bytes | None) -> DecoderPlan:
    """Read a decoder's JSON (None: the tokenizer has none).

    Raises `UnsupportedModelError` for kinds that no decoder-only model of ours uses, and `TokenizerError` for
    damaged ones.
    """
    if state is None:
        return DecoderPlan((_SpaceBetween,))
    try:
        return _plan(_flatten(json.loads(state)))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TokenizerError(f"The tokenizer's decoder is damaged: {error!r}.") from None


def _flatten(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    return [step for inner in spec["decoders"] for step in _flatten(inner)]


def _plan(specs: list[Mapping[str, Any]]) -> DecoderPlan:
    kinds = [spec["type"] for spec in specs]
    if kinds == ["ByteLevel"]:
        return DecoderPlan((_ByteLevel,), is_byte_level=True)
    steps: list[Callable[[], Step]] = []
    replacements: list[tuple[str, str]] = []
    is_fused = False
    for spec in specs:
        match spec:
            case {"type": "ByteFallback"} if not is_fused:
                steps.append(_ByteFallback)
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if len(
                pattern
            ) == 1 or (pattern and not is_fused):
                steps.append(_bind(_Replace, pattern, content))
                replacements.append((pattern, content))
            case {"type": "Metaspace", "replacement": str(mark)}:
                drops_first = spec.get("prepend_scheme", "always") != "never"
                steps.append(_bind(_Metaspace, mark, drops_first, is_fused))
                replacements.append((mark, " "))
            case {"type": "Strip", "content": str(content), "start": int(start), "stop": 0}:
                steps.append(_bind(_StripLeft, content, start, is_fused))
            case _:
                raise UnsupportedModelError(
                    f"The tokenizer's decoder ({', '.join(map(str, kinds))}) is not supported: "
                    "byte-level BPE and SentencePiece tokenizers are."
                )
    return DecoderPlan(tuple(steps), False, "ByteFallback" in kinds, tuple(replacements))


def _bind(step: Callable[..., Step], *options: Any) -> Callable[[], Step]:
    return lambda: step(*options)
