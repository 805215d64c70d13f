"""Engines over scripts instead of models, and models that are made to say something."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import torch

from tests.fakes import FakeRunner, Script, build_fake_core, letters
from tinyllm import AsyncEngine, Engine, RequestOutput, SamplingParams, TokenStream
from tinyllm.core.request import Request
from tinyllm.params import LogitsProcessor
from tinyllm.text.tokenizer import Tokenizer

SMALL: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 8,
    "num_threads": 1,
    "dtype": "float32",
    "progress": False,
    "check_integrity": True,
    "status_log_interval": 0,
}
"""Options of an engine over a small checkpoint."""


def fake_engine(
    script: Script = letters,
    *,
    runner: FakeRunner | None = None,
    tokenizer: Tokenizer | None = None,
    num_blocks: int = 256,
    **options: Any,
) -> AsyncEngine:
    """Make an engine over the fakes, which says what ``script`` says."""
    build = partial(build_fake_core, script=script, runner=runner, tokenizer=tokenizer, num_blocks=num_blocks)
    return AsyncEngine(_build=build, check_integrity=True, status_log_interval=0, **options)


def gives(ids: Sequence[int], then: int) -> Script:
    """Choose these tokens, then ``then`` for ever."""

    def script(request: Request) -> int:
        place = request.num_output_tokens
        return ids[place] if place < len(ids) else then

    return script


async def read(stream: TokenStream) -> list[RequestOutput]:
    """Read a stream to its end, which must come soon."""
    with anyio.fail_after(20):
        return [piece async for piece in stream]


def text_of(pieces: Sequence[RequestOutput]) -> str:
    return "".join(piece.text for piece in pieces)


def ids_in(pieces: Sequence[RequestOutput]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]


def forces(ids: Sequence[int], prompt: Sequence[int]) -> LogitsProcessor:
    """Make a model say exactly these tokens after ``prompt``."""

    def hook(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(logits, -torch.inf)
        forced[ids[len(token_ids) - len(prompt)]] = 0.0
        return forced

    return hook


def favours(*ids: int) -> LogitsProcessor:
    """Make a model like these tokens best, the first most of all."""

    def hook(_: list[int], logits: torch.Tensor) -> torch.Tensor:
        for rank, token_id in enumerate(ids):
            logits[token_id] = 1e4 - 100 * rank
        return logits

    return hook


def sampling(**options: Any) -> SamplingParams:
    """Make params of values that need not be of the right type."""
    return SamplingParams(**options)


PROMPT = (5, 6, 7)


def forced(ids: Sequence[int], **options: Any) -> SamplingParams:
    """Return params with which a model says exactly these tokens after ``PROMPT``."""
    return SamplingParams(
        **{
            "temperature": 0.0,
            "max_tokens": len(ids),
            "ignore_eos": True,
            "logits_processors": (forces(ids, PROMPT),),
            **options,
        }
    )


def encode(engine: Engine | AsyncEngine, text: str) -> list[int]:
    """Return the token ids of a text alone."""
    assert engine.tokenizer is not None
    return engine.tokenizer.encode(text, add_special_tokens=False)


def decode(engine: Engine | AsyncEngine, ids: Sequence[int]) -> str:
    assert engine.tokenizer is not None
    return engine.tokenizer.decode(ids)
