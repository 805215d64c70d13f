from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.server.reasoning import ReasoningSplitter


def split(pieces: list[str], *, inside: bool = False) -> tuple[str, str]:
    splitter = ReasoningSplitter(inside=inside)
    parts = [splitter.feed(piece) for piece in pieces] + [splitter.finish()]
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


CASES = {
    "no tags": ("Hello there", False, "", "Hello there"),
    "tags": ("<think>\nhm, so\n\nwell\n</think>\n\nHello", False, "hm, so\n\nwell", "Hello"),
    "blank before the tag": ("\n <think>a</think>b", False, "a", "b"),
    "empty thoughts": ("<think>\n\n</think>\n\nHello", False, "", "Hello"),
    "opened by the prompt": ("\nhm</think> Hello", True, "hm", "Hello"),
    "never closed": ("<think>hm </thin", False, "hm </thin", ""),
    "a tag that is none": ("<thick> and <think>", False, "", "<thick> and <think>"),
    "a tag later on": ("Use <think>x</think>", False, "", "Use <think>x</think>"),
    "a second time": ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
    "only the beginning of a tag": ("<thi", False, "", "<thi"),
    "nothing after": ("<think>a</think>\n", False, "a", ""),
    "angles in thoughts": ("<think>a < b </ c</think>d", False, "a < b </ c", "d"),
    "blank answer": ("  \n", False, "", "  \n"),
}


@pytest.mark.parametrize(("text", "inside", "reasoning", "content"), CASES.values(), ids=CASES.keys())
def test_every_way_to_cut_a_text_in_two_gives_the_same(
    text: str, inside: bool, reasoning: str, content: str
) -> None:
    for cut in range(len(text) + 1):
        assert split([text[:cut], text[cut:]], inside=inside) == (reasoning, content)
    assert split(list(text), inside=inside) == (reasoning, content)


texts = st.text("<think></think> \nab", max_size=40) | st.builds(
    "{}<think>{}</think>{}".format, *[st.text(" \na</<", max_size=8)] * 3
)


@given(texts, st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_cuts_make_no_difference(text: str, cuts: list[int], inside: bool) -> None:
    places = [0, *sorted(cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    if "".join(pieces) == text:
        assert split(pieces, inside=inside) == split([text], inside=inside)
