"""`Workload`: plans of any length and any window of one dataset, no two of which a server has seen."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tinyllm.bench.serve.load import Plan
from tinyllm.bench.serve.planning import make_plan
from tinyllm.bench.serve.prompts import WORDS
from tinyllm.bench.serve.records import Limits
from tinyllm.bench.serve.samples import Prompt, Sample, Turn
from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions, ServerOptions

__all__ = ["Workload", "unlike"]

_SALT_WORDS: Final = 3


class Workload:
    """A dataset put on a server at any rate: a trace with its own pattern, others as a gamma process.

    Each plan has prompts that begin unlike those of every other, so that no run finds its prompts in the
    server's cache because of a run before it; beginnings shared within a run stay shared.
    """

    def __init__(
        self,
        server: ServerOptions,
        dataset: DatasetOptions,
        *,
        burstiness: float = 1.0,
        limits: Limits,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = limits
        self.num_prompts = dataset.num_prompts
        """Of a window."""
        self._server, self._dataset, self._burstiness = server, dataset, burstiness
        self._metadata = metadata or {}
        self._salts = itertools.count()

    async def plan(self, rate: float, count: int, window: int = 0) -> Plan:
        """Return a plan of ``count`` requests, the ``window``-th such part of the dataset.

        ``rate`` is in requests a second. Waits until the server answers. Raises `ConfigError`, `EngineError`.
        """
        is_trace = self._dataset.dataset_name == "burstgpt"
        part = {"window": window} if is_trace else {"seed": self._dataset.seed + window}
        given = self._dataset.model_dump(exclude_unset=True)
        plan = await make_plan(
            self._server,
            DatasetOptions(**given | {"num_prompts": count} | part),
            ArrivalOptions(request_rate=rate, burstiness=self._burstiness, replay_timestamps=is_trace),
            limits=self.limits,
            metadata=self._metadata,
        )
        salt = f"{self._dataset.seed}/{next(self._salts)}"
        return dataclasses.replace(
            plan, samples=unlike(plan.samples, salt), warmups=unlike(plan.warmups, f"{salt}/warm-up")
        )


def unlike(samples: Sequence[Sample], salt: str) -> list[Sample]:
    """Return the conversations with another beginning, the same for all of them, which ``salt`` decides.

    A text gets a few words in front; the first of token ids becomes one of all that there are.
    """
    rng = random.Random(salt)  # noqa: S311  no secret
    words = " ".join(rng.choices(WORDS, k=_SALT_WORDS))
    firsts = [sample.turns[0] for sample in samples]
    ids = sorted({token for turn in firsts for token in turn.prompt if isinstance(token, int)})
    first_id = rng.choice(ids or [0])
    return [
        dataclasses.replace(
            sample, turns=(Turn(_begun(turn.prompt, words, first_id), turn.max_tokens), *sample.turns[1:])
        )
        for sample, turn in zip(samples, firsts, strict=True)
    ]


def _begun(prompt: Prompt, words: str, first_id: int) -> Prompt:
    if isinstance(prompt, str):
        return f"{words} {prompt}"
    first, *rest = prompt
    if isinstance(first, dict):
        return [first | {"content": f"{words} {first.get('content') or ''}"}, *_messages(rest)]
    return [first_id, *(token for token in rest if isinstance(token, int))]


def _messages(prompt: Sequence[Any]) -> list[dict[str, Any]]:
    return [message for message in prompt if isinstance(message, dict)]
