"""`Answer`: what one engine chose, token by token; `Difference`: where two engines part, and how narrowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

__all__ = ["TIES", "Answer", "Difference", "Pair", "first_difference", "pairs"]

TIES: Final = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.1}
"""Logits closer than this are equal to two ways of rounding."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: at each step the chosen token, the second best, and how far apart their logits are."""

    token_ids: tuple[int, ...]
    runners_up: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step at which two answers to one prompt are not the same. Until there both saw the same."""

    position: int
    """Tokens of the answer before it."""
    token_ids: tuple[int, int]
    margins: tuple[float, float]
    """Of each engine's own logits there: its choice above its second best."""
    swapped: bool
    """Whether each chose what is the other's second best."""

    def is_tie(self, tolerance: float) -> bool:
        """Whether rounding alone explains it: two tokens, near enough for both engines."""
        return self.swapped and max(self.margins) <= tolerance


@dataclass(frozen=True, slots=True)
class Pair:
    """Two engines on all prompts: how many answers are equal, part at a tie, or part for another reason."""

    engines: tuple[str, str]
    equal: int
    ties: int
    different: int
    equal_tokens: int
    """Tokens before the first difference, of all answers."""

    @property
    def verdict(self) -> Literal["equal", "equal but for ties", "DIFFERENT"]:
        """The pair in a word."""
        if self.different:
            return "DIFFERENT"
        return "equal but for ties" if self.ties else "equal"


def first_difference(one: Answer, other: Answer) -> Difference | None:
    """Return where two answers of the same length part; None if nowhere."""
    chosen = zip(one.token_ids, other.token_ids, strict=True)
    at = next((i for i, (mine, theirs) in enumerate(chosen) if mine != theirs), None)
    if at is None:
        return None
    mine, theirs = one.token_ids[at], other.token_ids[at]
    return Difference(
        at,
        (mine, theirs),
        (one.margins[at], other.margins[at]),
        one.runners_up[at] == theirs and other.runners_up[at] == mine,
    )


def pairs(answers: Mapping[str, Sequence[Answer]], tolerance: float) -> list[Pair]:
    """Compare every engine with every other, prompt by prompt."""
    found = []
    for names in combinations(answers, 2):
        sides = list(zip(*(answers[name] for name in names), strict=True))
        parted = [first_difference(one, other) for one, other in sides]
        ties = sum(each is not None and each.is_tie(tolerance) for each in parted)
        found.append(
            Pair(
                (names[0], names[1]),
                equal=parted.count(None),
                ties=ties,
                different=len(parted) - parted.count(None) - ties,
                equal_tokens=sum(
                    len(one.token_ids) if each is None else each.position
                    for each, (one, _) in zip(parted, sides, strict=True)
                ),
            )
        )
    return found
