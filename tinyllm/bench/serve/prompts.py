"""Prompts of a wanted number of tokens, made of random words or of token ids.

How many tokens a text has is for the tokenizer to say: one of our own (``--tokenizer``), or the server's,
where it has ``/tokenize``. Token ids need neither, but only completions take them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tinyllm.bench.serve.client import Client
from tinyllm.bench.serve.samples import Prompt
from tinyllm.bench.workload import ordinary_ids
from tinyllm.errors import ConfigError

__all__ = ["Counter", "IdPrompts", "PromptMaker", "TextPrompts", "local_counter", "server_counter"]

Counter = Callable[[str], Awaitable[int]]
"""Returns how many tokens a text has."""

TRIES: Final = 24
_WORDS: Final = """
time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home
water room mother area money story fact month lot right study book eye job word business issue side kind
head house service friend father power hour game line end member law car city community name president
team minute idea body back parent face level office door health person art war history party result change
morning reason research girl guy moment air teacher force education foot boy age policy music market sense
nation plan college interest death experience effect use class control field development role effort rate
heart drug show leader light voice wife police mind price report decision son view town road arm
difference value building action season society tax director position player record paper space ground
form event official matter center couple site project activity star table need court oil situation cost
industry figure street image phone data picture practice piece land product doctor wall patient worker
news test movie north love support technology step baby computer type film tree source hair window culture
chance brother energy period course summer plant opportunity term letter condition choice rule south floor
campaign material population call economy hospital church risk fire future bank west sport board subject
officer rest behavior performance top goal second bed order author blood agency nature color store sound
movement page race concern series language response animal factor decade article east artist scene stock
career treatment approach size
"""
WORDS: Final = tuple(_WORDS.split())
"""Short and common, so that a tokenizer has most of them as one token."""


class PromptMaker(Protocol):
    """Makes prompts."""

    async def make(self, tokens: int, rng: random.Random, beginning: Prompt = "") -> Prompt:
        """Return a random prompt of so many tokens, which begins with ``beginning``."""
        ...


@dataclass(frozen=True, slots=True)
class IdPrompts:
    """Prompts that are token ids below ``vocab_size``."""

    vocab_size: int

    async def make(self, tokens: int, rng: random.Random, beginning: Prompt = "") -> Prompt:
        """Return ids; exactly ``tokens`` of them."""
        start = [token for token in beginning if isinstance(token, int)]
        return [*start, *rng.choices(ordinary_ids(self.vocab_size), k=max(0, tokens - len(start)))]


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Prompts that are words, with as many tokens as ``count`` says."""

    count: Counter

    async def make(self, tokens: int, rng: random.Random, beginning: Prompt = "") -> Prompt:
        """Return a text of ``tokens`` tokens, or of a few more or less where words do not give that."""
        start = str(beginning)
        words = rng.choices(WORDS, k=max(1, tokens - len(start.split())))
        best, best_off = "", -1
        for _ in range(TRIES):
            text = " ".join([start, *words] if start else words)
            off = await self.count(text) - tokens
            if best_off < 0 or abs(off) < best_off:
                best, best_off = text, abs(off)
            if off == 0 or (off > 0 and len(words) == 1):
                break
            if off < 0:
                words += rng.choices(WORDS, k=-off)
            else:  # a word may be several tokens
                share = len(words) * off // (tokens + off)
                del words[-min(max(1, share), len(words) - 1) :]
        return best


def server_counter(client: Client) -> Counter:
    """Count with the server's tokenizer. The first call raises `ConfigError` where it has none for us."""
    shapes = [
        ("/tokenize", "prompt"),  # tinyllm, vLLM
        ("/tokenize", "content"),  # llama.cpp
        ("/extras/tokenize", "input"),  # llama-cpp-python
    ]

    async def count(text: str) -> int:
        while shapes:
            path, name = shapes[0]
            try:
                status, body = await client.post(path, {"model": client.target.model, name: text})
                if status == 200:
                    return len(json.loads(body)["tokens"])
            except (ValueError, LookupError, TypeError):
                pass
            del shapes[0]
        raise ConfigError(
            "the server has no /tokenize, so nobody knows how many tokens a text has: give --tokenizer, or "
            "--vocab-size for prompts of token ids"
        )

    return count


def local_counter(model: str) -> Counter:
    """Count with a model's tokenizer: a directory, a ``.gguf`` file or a Hub id. Raises `ArtifactError`."""
    from tinyllm.artifacts.resolve import open_model
    from tinyllm.errors import TokenizerError
    from tinyllm.text.tokenizer import load_tokenizer

    artifacts = open_model(model, progress=False)
    if artifacts.tokenizer is None:
        raise TokenizerError(f"{artifacts.name} has no tokenizer.")
    tokenizer = load_tokenizer(artifacts.tokenizer)

    async def count(text: str) -> int:
        return len(tokenizer.encode(text))

    return count
