"""A server of the study that answers at once: ``python fake_server.py NAME [--die-after N] --port PORT``."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

from tests.bench.serve.scripted import Reply, Scripted, whole


async def serve(port: int, die_after: int | None) -> None:
    async def script(body: dict[str, Any], reply: Reply) -> None:
        if die_after is not None and len(fake.bodies) > die_after:
            os._exit(3)
        await whole(reply, ["x"] * body["max_tokens"])

    fake = Scripted(script)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await fake.answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--refuse", action="store_true")
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    if args.refuse:
        raise SystemExit("no such option")
    asyncio.run(serve(args.port, args.die_after))
