"""How prompts that are computed together divide a step."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fair_shares", "prefill_shares"]


def fair_shares(wants: Sequence[int], budget: int) -> list[int]:
    """Divide ``budget`` equally, but give nobody more than wanted: what the modest leave goes to the others.

    This is max-min fairness. The shares sum to the smaller of ``budget`` and the sum of ``wants``; everyone
    who wants something gets something if ``budget >= len(wants)``.
    """
    shares = [0] * len(wants)
    for place, index in enumerate(sorted(range(len(wants)), key=wants.__getitem__)):
        shares[index] = min(wants[index], budget // (len(wants) - place))
        budget -= shares[index]
    return shares


def prefill_shares(wants: Sequence[int], budget: int, long: int) -> list[int]:
    """Divide ``budget`` among prompts with ``wants`` tokens left, given in order of rank.

    Each prompt with more than ``long`` tokens gets a fair share, and so do all the short ones together, who
    take theirs one after the other: dividing it would only let each of them finish as late as the last.
    """
    longs = [want for want in wants if want > long]
    for_shorts, *for_longs = fair_shares([sum(wants) - sum(longs), *longs], budget)
    shares = []
    for want in wants:
        if want > long:
            shares.append(for_longs.pop(0))
        else:
            shares.append(min(want, for_shorts))
            for_shorts -= shares[-1]
    return shares
