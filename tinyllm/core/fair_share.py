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


def prefill_shares(
    wants: Sequence[int], are_long: Sequence[bool], budget: int, long_budget: int
) -> list[int]:
    """Divide ``budget`` among prompts with ``wants`` tokens left, given in order of rank.

    Long prompts get fair shares of at most ``long_budget`` together, and at most of what is fair beside the
    short ones. Of these, any that is done with an equal part of the rest comes first, so that it never waits
    for a larger one; then one comes after the other: dividing would only let each finish as late as the last.
    """
    longs = [want for want, is_long in zip(wants, are_long, strict=True) if is_long]
    _, *fair = fair_shares([sum(wants) - sum(longs), *longs], budget)
    for_longs = iter(fair_shares(longs, min(long_budget, sum(fair))))
    shares = [next(for_longs) if is_long else 0 for is_long in are_long]
    left = budget - sum(shares)
    shorts = [place for place, is_long in enumerate(are_long) if not is_long]
    modest = left // max(1, len(shorts))
    for place in sorted(shorts, key=lambda place: wants[place] > modest):
        shares[place] = min(wants[place], left)
        left -= shares[place]
    return shares
