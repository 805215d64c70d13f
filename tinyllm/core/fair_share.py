"""`fair_shares`: how prompts that are computed together divide a step."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fair_shares"]


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
