"""Prompts have the tokens that were asked for."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.bench.serve.scripted import Scripted, scripted, whole
from tinyllm.bench.serve.client import open_client
from tinyllm.bench.serve.prompts import IdPrompts, TextPrompts, local_counter, server_counter
from tinyllm.errors import ConfigError


@pytest.mark.parametrize("checkpoint", ["tiny_llama", "tiny_qwen3"])
def test_texts_have_exactly_their_tokens(checkpoint: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(checkpoint)
    count = local_counter(str(path))

    async def main() -> None:
        maker = TextPrompts(count)
        rng = random.Random(0)
        for tokens in (8, 33, 200):
            assert await count(str(await maker.make(tokens, rng))) == tokens
        beginning = await maker.make(40, rng)
        whole = str(await maker.make(64, rng, beginning))
        assert whole.startswith(str(beginning))
        assert await count(whole) == 64

    asyncio.run(main())


def test_words_of_several_tokens_come_as_near_as_they_can() -> None:
    async def three_each(text: str) -> int:
        return 3 * len(text.split()) + 1

    async def main(tokens: int) -> int:
        return await three_each(str(await TextPrompts(three_each).make(tokens, random.Random(0))))

    assert asyncio.run(main(100)) == 100
    assert abs(asyncio.run(main(101)) - 101) <= 2
    assert asyncio.run(main(1)) == 4


def test_ids_need_no_tokenizer() -> None:
    async def main() -> None:
        maker, rng = IdPrompts(1000), random.Random(0)
        beginning = await maker.make(10, rng)
        ids = await maker.make(25, rng, beginning)
        assert len(ids) == 25
        assert list(ids[:10]) == beginning
        assert all(isinstance(token, int) and 0 <= token < 1000 for token in ids)

    asyncio.run(main())


def words(name: str) -> Any:
    return lambda body: {"tokens": body[name].split()} if name in body else {"count": 0}


@pytest.mark.parametrize(
    ("path", "field"), [("/tokenize", "prompt"), ("/tokenize", "content"), ("/extras/tokenize", "input")]
)
def test_the_servers_tokenizer_counts(path: str, field: str) -> None:
    async def main(server: Scripted) -> int:
        async with open_client(server.target()) as client:
            return await server_counter(client)("three short words")

    async def serve() -> int:
        async with scripted(lambda body, reply: whole(reply, ["x"])) as server:
            server.pages[path] = words(field)
            return await main(server)

    assert asyncio.run(serve()) == 3


def test_without_a_tokenizer_there_is_advice() -> None:
    async def serve() -> None:
        async with (
            scripted(lambda body, reply: whole(reply, ["x"])) as server,
            open_client(server.target()) as client,
        ):
            await server_counter(client)("text")

    with pytest.raises(ConfigError, match="--vocab-size"):
        asyncio.run(serve())
