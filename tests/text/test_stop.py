"""`StopMatcher`: nothing of a stop string leaks, nothing else is lost or late."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyllm.text.stop import StopMatcher


def run(stop: Sequence[str], pieces: Sequence[str], *, include: bool = False) -> tuple[list[str], str | None]:
    """Return what comes out for each piece (and the flush, without a match), and the match."""
    matcher, out = StopMatcher(stop, include=include), []
    for piece in pieces:
        text, matched = matcher.push(piece)
        out.append(text)
        if matched is not None:
            return out, matched
    return [*out, matcher.flush()], None


def reference(stop: Sequence[str], text: str) -> tuple[str, str | None]:
    """Find the stop string that is completed first (of several, the longest) by trying every end."""
    for end in range(1, len(text) + 1):
        if here := [word for word in stop if text[:end].endswith(word)]:
            match = max(here, key=len)
            return text[: end - len(match)], match
    return text, None


def longest_beginning(stop: Sequence[str], text: str) -> int:
    """Return the length of the longest end of ``text`` that is a proper beginning of a stop string."""
    return max(
        (n for word in stop for n in range(1, min(len(word), len(text) + 1)) if text.endswith(word[:n])),
        default=0,
    )


LETTERS = st.text("ab,", max_size=12)
STOPS = st.lists(st.text("ab,", min_size=1, max_size=5), min_size=1, max_size=4)


@settings(max_examples=400)
@given(stop=STOPS, pieces=st.lists(LETTERS, max_size=6), include=st.booleans())
@example(stop=["aab", "ab", "b"], pieces=["aaab"], include=False)
@example(stop=["abab", "ba"], pieces=["aba", "b"], include=True)
def test_any_pieces_give_what_the_whole_text_gives(stop: list[str], pieces: list[str], include: bool) -> None:
    out, matched = run(stop, pieces, include=include)
    text, expected = reference(stop, "".join(pieces))
    assert (matched, "".join(out)) == (expected, text + (expected or "") if include else text)


@settings(max_examples=300)
@given(stop=STOPS, pieces=st.lists(LETTERS, max_size=6))
def test_only_what_can_become_a_match_is_held_back(stop: list[str], pieces: list[str]) -> None:
    matcher, text, shown = StopMatcher(stop), "", ""
    for piece in pieces:
        out, matched = matcher.push(piece)
        if matched is not None:
            return
        text, shown = text + piece, shown + out
        assert len(text) - len(shown) == longest_beginning(stop, text)


@settings(max_examples=300)
@given(stop=STOPS, before=st.lists(LETTERS, max_size=4), after=st.lists(LETTERS, max_size=4))
def test_min_tokens_counts_where_a_stop_is_completed(
    stop: list[str], before: list[str], after: list[str]
) -> None:
    """D21: text before min_tokens completes no stop string, though one may begin there."""
    matcher, shown, matched = StopMatcher(stop), "", None
    for piece in before:
        out, matched = matcher.push(piece, armed=False)
        assert matched is None
        shown += out
    for piece in after:
        out, matched = matcher.push(piece)
        shown += out
        if matched is not None:
            break
    shown += matcher.flush()
    early, text = len("".join(before)), "".join([*before, *after])
    ends = [end for end in range(early + 1, len(text) + 1) if any(text[:end].endswith(word) for word in stop)]
    if not ends:
        assert (matched, shown) == (None, text)
    else:
        longest = max((word for word in stop if text[: ends[0]].endswith(word)), key=len)
        assert (matched, shown) == (longest, text[: ends[0] - len(longest)])


def test_a_stop_string_over_many_pieces() -> None:
    """D10."""
    out, matched = run(["DEFGHIJ"], ["AB", "CD", "EFG", "H", "IJ"])
    assert ("".join(out), matched) == ("ABC", "DEFGHIJ")
    assert out == ["AB", "C", "", "", ""]


@pytest.mark.parametrize(
    "pieces", [["Hi", "\n", "User", ":", " more"], ["Hi\nUser: more"], list("Hi\nUser:")]
)
def test_no_character_of_a_match_leaks(pieces: list[str]) -> None:
    """D11."""
    out, matched = run(["\nUser:"], pieces)
    assert ("".join(out), matched) == ("Hi", "\nUser:")
    assert run(["\nUser:"], pieces, include=True)[0][-1].endswith("User:")


def test_text_that_is_no_match_after_all_comes_out_whole() -> None:
    """D12."""
    out, matched = run(["b,c"], ["a,", "b", ",", "x", "<tag>"])
    assert (out, matched) == (["a,", "", "", "b,x", "<tag>", ""], None)


def test_held_text_is_delivered_at_the_end() -> None:
    """D13."""
    assert run(["STOP"], ["go ST", "O"]) == (["go ", "", "STO"], None)


def test_the_first_completed_wins_and_of_equals_the_longest() -> None:
    assert run(["abcdef", "cd"], ["abcdef"]) == (["ab"], "cd")
    assert run(["cd", "bcd", "d"], ["abcd"]) == (["a"], "bcd")


def test_min_tokens_by_example() -> None:
    """D21."""
    matcher = StopMatcher(["\n"])
    assert matcher.push("a\nb\n", armed=False) == ("a\nb\n", None)
    assert matcher.push("c\nd") == ("c", "\n")


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", "x")
    assert matcher.push("more") == ("", None)
    assert matcher.flush() == ""


def test_without_stop_strings_text_passes() -> None:
    assert run([], ["a", "b"]) == (["a", "b", ""], None)


def test_cost_does_not_grow_with_the_stop_strings() -> None:
    """A text full of near misses is the worst case of searching anew for each piece."""
    times = []
    for length in (2, 256):
        matcher = StopMatcher(["a" * length + str(i) for i in range(10)])
        began = time.perf_counter()
        for _ in range(20_000):
            matcher.push("a")
        times.append(time.perf_counter() - began)
    assert times[1] < 10 * times[0] + 0.1
