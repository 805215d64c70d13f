"""``tinyllm serve``: the model over HTTP, in the protocol of OpenAI's API."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from tinyllm.errors import TinyLLMError
from tinyllm.server.signals import ending_signals

if TYPE_CHECKING:
    from tinyllm.server.settings import ServerConfig

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command's parser."""
    from tinyllm.cli.options import add_server_options

    parser = commands.add_parser(
        "serve",
        help="serve a model over HTTP, to OpenAI clients",
        description="Serve MODEL over HTTP, to OpenAI clients. Every flag has a variable, such as "
        "TINYLLM_PORT for --port, and a place in the file of --config; flags win over variables, and those "
        "over the file.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        default=argparse.SUPPRESS,
        help="directory, .gguf file or Hub id (default: the demo model)",
    )
    add_server_options(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes. 0: a signal; 1: the engine died; 2: options or model are no good."""
    with _ended_by_signals():
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from tinyllm.cli.options import server_config
    from tinyllm.server.logs import set_up_logs, warn_of_unknown_variables
    from tinyllm.server.run import EXIT_USAGE

    config = server_config(args)
    set_up_logs(config)
    warn_of_unknown_variables()
    try:
        _check_files(config)
    except TinyLLMError as error:
        print(f"tinyllm serve: {error}", file=sys.stderr)
        return EXIT_USAGE
    return asyncio.run(_serve(config))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End as a server does that has nothing to finish, until the server itself listens to signals."""
    before = {number: signal.signal(number, _end) for number in ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(0)


async def _serve(config: ServerConfig) -> NoReturn:
    from tinyllm.server.run import end_process, run_server

    end_process(await run_server(config))


def _check_files(config: ServerConfig) -> None:
    """Look at a model on this machine before anything is opened: a bad one is told at once.

    What is on the Hub, or has to be fetched, may take long, and is loaded while the server says so.
    """
    from tinyllm.artifacts.resolve import open_model

    name = os.path.expanduser(config.model or "")
    if name and (os.path.exists(name) or "/" not in name or name.startswith(("/", "."))):
        open_model(config.model, revision=config.revision, cache_dir=config.cache_dir, offline=True)
