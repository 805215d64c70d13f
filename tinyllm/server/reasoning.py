"""Splits an answer into what the model thought, in ``<think>`` tags, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tinyllm.outputs import RequestOutput

__all__ = ["CLOSE", "OPEN", "ReasoningSplitter", "Split", "SplitterFactory", "divide"]

OPEN: Final = "<think>"
CLOSE: Final = "</think>"


class Split(NamedTuple):
    """A piece of text, divided."""

    reasoning: str = ""
    content: str = ""


class ReasoningSplitter:
    """Divides one answer, piece by piece; where the pieces are cut makes no difference to the whole.

    Only tags at the very beginning count: an answer that mentions ``<think>`` later is just text. Blank space
    around what was thought belongs to the tags.
    """

    def __init__(self, *, inside: bool = False, begun: str = "") -> None:
        """Begin an answer; ``inside`` when the prompt has opened the tag already.

        ``begun`` is what the prompt has of the answer; of that nothing is returned.
        """
        self._state = "thinking" if inside else "start"
        self._held = ""
        self._blank_counts = False
        self.feed(begun)
        self._held = self._held.lstrip()

    @property
    def thinking(self) -> bool:
        """Whether the model is at its thoughts now."""
        return self._state == "thinking"

    def feed(self, text: str) -> Split:
        """Take the next piece, and return what is certain by now."""
        self._held += text
        reasoning = ""
        if self._state == "start":
            self._find_open()
        if self._state == "thinking":
            reasoning = self._take_thoughts()
        return Split(reasoning, self._take_content())

    def finish(self) -> Split:
        """Return what was held back: the answer is over."""
        held, self._held = self._held, ""
        if self._state == "thinking":
            return Split(self._trimmed(held).rstrip(), "")
        return Split("", held.lstrip() if self._state == "after" else held)

    def _find_open(self) -> None:
        begin = self._held.lstrip()
        if begin.startswith(OPEN):
            self._state, self._held = "thinking", begin.removeprefix(OPEN)
        elif not OPEN.startswith(begin):
            self._state = "content"

    def _take_thoughts(self) -> str:
        """Cut off what is certainly thought; what may be the closing tag waits, and so does blank space."""
        thought, tag, rest = self._held.partition(CLOSE)
        if tag:
            self._state, self._held = "after", rest
            return self._trimmed(thought.rstrip())
        certain = thought[: len(thought) - _overlap(thought, CLOSE)].rstrip()
        if not certain:
            return ""
        self._held = thought[len(certain) :]
        text = self._trimmed(certain)
        self._blank_counts = True
        return text

    def _trimmed(self, thought: str) -> str:
        return thought if self._blank_counts else thought.lstrip()

    def _take_content(self) -> str:
        if self._state == "after" and (rest := self._held.lstrip()):
            self._state, self._held = "content", rest
        if self._state != "content":
            return ""
        text, self._held = self._held, ""
        return text


SplitterFactory = Callable[[], ReasoningSplitter | None]
"""Makes what divides one answer into thoughts and text; None where the model does not think."""


def divide(output: RequestOutput, splitter: ReasoningSplitter | None) -> Split:
    """Divide a piece of text; the last one gives what was held back too."""
    if splitter is None:
        return Split(content=output.text)
    split = splitter.feed(output.text)
    if output.finish_reason is None:
        return split
    rest = splitter.finish()
    return Split(split.reasoning + rest.reasoning, split.content + rest.content)


def _overlap(text: str, tag: str) -> int:
    """Return how many characters at the end of ``text`` begin ``tag``."""
    return next((n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0)
