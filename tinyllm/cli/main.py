"""``tinyllm``: picks the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Final, NoReturn

from tinyllm.cli.parser import Parser
from tinyllm.cli.streams import drop_output, set_up_streams
from tinyllm.errors import ConfigError, InvalidRequestError, TinyLLMError

__all__ = ["COMMANDS", "main"]

COMMANDS: Final = {
    "serve": "serve a model over HTTP, to OpenAI clients",
    "chat": "talk to a model in the terminal",
    "generate": "complete a prompt",
    "tokenize": "show the tokens of a text",
    "inspect": "say what a model is and what it needs, without loading it",
    "pull": "fetch a model ahead of time",
    "convert": "turn a GGUF file into a safetensors directory",
    "bench": "measure how fast a model runs here",
    "doctor": "say what this machine has, and check that the engine is exact on it",
}
"""Command -> one line of help. Each lives in the module of its name."""

EXIT_FAULT: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

TIDY_UP_SECONDS: Final = 1.0
"""What an interrupted process waits for at most."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 fault, 2 wrong use, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = "tinyllm"
    try:
        set_up_streams()
        args = _parser(arguments).parse_args(arguments)
        name = f"tinyllm {args.command}"
        code = _command(args.command).run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        if argv is None:
            _leave_now()
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        drop_output()
        return EXIT_FAULT
    except OSError as error:  # a disk that is full, a directory that cannot be written
        place = f"{os.path.basename(os.fsdecode(error.filename))}: " if error.filename else ""
        print(f"{name}: {place}{error.strerror or error}", file=sys.stderr)
        _finish_output()
        return EXIT_FAULT
    except TinyLLMError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, (ConfigError, InvalidRequestError)) else EXIT_FAULT
    return int(code)


def _leave_now() -> NoReturn:
    """Leave without waiting for threads that fetch or load; an engine's has a moment to tidy up.

    Another interrupt cuts that short. The interpreter's own way out would wait for a download's threads, to
    the last byte.
    """
    try:
        end = time.monotonic() + TIDY_UP_SECONDS
        for thread in threading.enumerate():
            if thread.name.startswith("tinyllm-executor"):
                thread.join(max(0.0, end - time.monotonic()))
        _finish_output()
    finally:
        os._exit(EXIT_INTERRUPTED)


def _finish_output() -> None:
    """Write what is left of the output, unless it is the output that failed."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()


def _parser(arguments: Sequence[str]) -> Parser:
    """Build the parser; of the commands only the one that is called is imported."""
    from importlib.metadata import version

    parser = Parser(
        prog="tinyllm", description="Run and serve language models. Without --model: SmolLM2-135M-Instruct."
    )
    parser.add_argument("--version", action="version", version=f"tinyllm {version('tinyllm')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((word for word in arguments if not word.startswith("-")), None)
    for name, line in COMMANDS.items():
        if name == called:
            _command(name).add_parser(commands)
        else:
            commands.add_parser(name, help=line)
    return parser


def _command(name: str) -> ModuleType:
    return importlib.import_module(f"tinyllm.cli.{name}")
