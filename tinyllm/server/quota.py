"""`Quotas`: what each API key may have at once and in a minute, and whose turn it is.

All is counted here, on the event loop, from a request's acceptance to its end. Without keys everybody
together counts as one.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tinyllm.errors import InvalidRequestError
from tinyllm.server.errors import RefusedError
from tinyllm.server.keys import Caller
from tinyllm.server.settings import ServerConfig

__all__ = ["Bucket", "Quotas", "Share"]

TICK: Final = 1e-4
"""Least distance between two turns of a key, in steps of priority: enough to keep their order."""


class Bucket:
    """A token bucket: it fills at a constant rate up to what one minute brings, and may be overdrawn."""

    def __init__(self, per_minute: int, now: float) -> None:
        self._most, self._level = float(per_minute), float(per_minute)
        self._rate = per_minute / 60
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Return the seconds until there is ``amount``; 0 if there is."""
        missing = amount - self._fill(now)
        return missing / self._rate if missing > 1e-6 else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take ``amount``, also if there is less: then it is owed."""
        self._level = self._fill(now) - amount

    def _fill(self, now: float) -> float:
        self._level = min(self._most, self._level + (now - self._at) * self._rate)
        self._at = now
        return self._level


@dataclass(slots=True)
class _Usage:
    """What one key has."""

    requests: Bucket | None
    tokens: Bucket | None
    answers: int = 0
    """Accepted and not ended."""
    place: float = 0.0
    """Where its latest request stands in the order of service, in steps of priority."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one accepted request takes of its key's quota, until `leave`."""

    turn: float
    """Steps of priority that it stands behind what other keys send now."""
    leave: Callable[[int], None]
    """Give its place back, and count the tokens it used. To be called once."""


class Quotas:
    """The books of all keys. Bounded: there are as many as there are keys."""

    def __init__(
        self, config: ServerConfig, num_keys: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self.several = num_keys > 1
        """Whether there are keys to be fair to."""
        self._room = config.max_num_seqs + config.max_waiting_requests
        self._clock = clock
        self._answers = 0
        self._usage: defaultdict[str, _Usage] = defaultdict(self._new_usage)

    def enter(self, caller: Caller, answers: int) -> Share:
        """Accept a request for so many answers, or raise a 429 that says when to come again."""
        now = self._clock()
        usage = self._usage[caller.name]
        self._check_answers(usage, answers)
        self._check_minute(usage, now)
        turn = self._turn(usage, now)
        if usage.requests is not None:
            usage.requests.take(1, now)
        usage.answers += answers
        self._answers += answers

        def leave(tokens: int) -> None:
            usage.answers -= answers
            self._answers -= answers
            if usage.tokens is not None:
                usage.tokens.take(tokens, self._clock())

        return Share(turn, leave)

    def _new_usage(self) -> _Usage:
        now, config = self._clock(), self._config
        return _Usage(
            None if config.key_rpm_limit is None else Bucket(config.key_rpm_limit, now),
            None if config.key_tpm_limit is None else Bucket(config.key_tpm_limit, now),
        )

    def _check_answers(self, usage: _Usage, answers: int) -> None:
        """Hold a key to its own limit, and to what leaves as much room for others.

        The second is the rule of dynamic thresholds (Choudhury and Hahne, 1998): however many keys are busy,
        each has as much as the others, and one that comes new finds as much free.
        """
        most = self._config.key_max_parallel_requests
        if most is not None and answers > most:
            raise InvalidRequestError(
                f"this asks for {answers} answers, and {most} are allowed at once "
                "(key_max_parallel_requests): ask for fewer",
                param="n",
            )
        if most is not None and usage.answers + answers > most:
            raise _refused(
                f"{usage.answers} of your answers are running or waiting, and {most} are allowed "
                "(key_max_parallel_requests)"
            )
        left = self._room - self._answers - answers
        if self.several and usage.answers and usage.answers + answers > left:
            raise _refused(
                f"{usage.answers} of your answers are running or waiting, and more would leave less than "
                "that for other API keys"
            )

    def _check_minute(self, usage: _Usage, now: float) -> None:
        if usage.requests is not None and (seconds := usage.requests.wait(1, now)):
            limit = self._config.key_rpm_limit
            raise _refused(f"{limit} requests a minute are allowed (key_rpm_limit)", seconds)
        if usage.tokens is not None and (seconds := usage.tokens.wait(1, now)):
            limit = self._config.key_tpm_limit
            raise _refused(f"{limit} tokens a minute are allowed (key_tpm_limit)", seconds)

    def _turn(self, usage: _Usage, now: float) -> float:
        """Return how far behind its arrival a request stands.

        Each answer that its key already has puts it back by one step of priority: so a key with a long queue
        does not keep one with none waiting, and two with long queues take turns. One key's requests keep
        their order.
        """
        if not self.several:
            return 0.0
        arrival = now / self._config.priority_ageing
        place = arrival + usage.answers
        usage.place = max(place, usage.place + TICK) if usage.answers else place
        return usage.place - arrival


def _refused(message: str, seconds: float = 1.0) -> RefusedError:
    wait = max(1, math.ceil(seconds))
    message = f"{message}: try again in {wait} s"
    return RefusedError(429, "rate_limit_exceeded", message, headers={"retry-after": str(wait)})
