"""`StopMatcher`: finds stop strings in text that comes in pieces."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["StopMatcher"]


@dataclass(slots=True)
class _State:
    """Text read so far ends with the first ``depth`` characters of some stop string."""

    depth: int = 0
    next: dict[str, _State] = field(default_factory=dict)
    shorter: _State | None = None
    """The longest other beginning of a stop string that the same text ends with; None at the root."""
    match: str | None = None
    """The longest stop string that ends here."""

    @property
    def held(self) -> int:
        """Characters at the end of the text that may still grow into a (longer) match."""
        if self.next or self.shorter is None:
            return self.depth
        return self.shorter.held


class StopMatcher:
    """Lets text through until a stop string is complete, holding back only what may become one.

    The stop string that is completed first ends the text; of several completed by the same character, the one
    that starts first. A stop string may come in any pieces. Each character costs the same, whatever the
    number and length of the stop strings (Aho and Corasick, "Efficient string matching", 1975).
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        """Watch for ``stop``; with ``include`` the matched string is part of the text that comes out."""
        self._include = include
        self._root = _automaton([text for text in stop if text])
        self._state = self._root
        self._held = ""
        self._is_stopped = False

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Take more text; return the text that is final now, and the stop string if one was completed.

        A stop string that is completed by text pushed with ``armed=False`` (before ``min_tokens``) does not
        count; one that begins in such text and is completed later does. After a match nothing comes out.
        """
        if self._is_stopped:
            return "", None
        if not self._root.next:
            return text, None
        text = self._held + text
        for position in range(len(self._held), len(text)):
            self._state = self._step(text[position])
            if armed and (match := self._state.match) is not None:
                self._is_stopped, self._held = True, ""
                end = position + 1
                return text[: end if self._include else end - len(match)], match
        safe = len(text) - self._state.held
        self._held = text[safe:]
        return text[:safe], None

    def flush(self) -> str:
        """Return the text held back, at the end of the stream: it did not become a stop string."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _step(self, character: str) -> _State:
        state: _State | None = self._state
        while state is not None:
            if (following := state.next.get(character)) is not None:
                return following
            state = state.shorter
        return self._root


def _automaton(stop: Sequence[str]) -> _State:
    """Build the tree of the stop strings' beginnings, with each state's way back to a shorter one."""
    root = _State()
    for text in stop:
        state = root
        for character in text:
            state = state.next.setdefault(character, _State(state.depth + 1))
        state.match = text
    queue = deque([root])
    while queue:
        state = queue.popleft()
        for character, child in state.next.items():
            child.shorter = _shorter(state, character, root)
            child.match = child.match or child.shorter.match
            queue.append(child)
    return root


def _shorter(parent: _State, character: str, root: _State) -> _State:
    state = parent.shorter
    while state is not None:
        if (following := state.next.get(character)) is not None:
            return following
        state = state.shorter
    return root
