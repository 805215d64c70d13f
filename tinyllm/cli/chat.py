"""``tinyllm chat``: one question, or a conversation with history, in the terminal."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any, Final

from tinyllm.errors import ContextLengthError, InvalidRequestError, RequestError
from tinyllm.outputs import FinishReason

if TYPE_CHECKING:
    from tinyllm.engine.async_engine import AsyncEngine
    from tinyllm.params import SamplingParams

__all__ = ["add_parser", "run"]

CHAT_TEMPERATURE: Final = 0.7
"""For models whose generation_config.json says nothing: 1.0 makes small models ramble."""

CHAT_MAX_TOKENS: Final = 1024
"""Small models sometimes never end."""

HELP: Final = (
    "/new starts over · /system TEXT sets the system prompt · /exit or Ctrl-D ends · Ctrl-C stops an answer"
)

Messages = list[dict[str, Any]]


def add_parser(commands: Any) -> None:
    """Add the command's parser."""
    from tinyllm.cli.options import add_engine_options, add_sampling_options

    parser = commands.add_parser(
        "chat",
        help="talk to a model in the terminal",
        description="Answer MESSAGE, or without one hold a conversation. " + HELP,
    )
    parser.add_argument("message", nargs="?", metavar="MESSAGE", help="ask once and exit")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    add_sampling_options(parser, without=("n", "logprobs", "prompt_logprobs"))
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. One event loop lives over all turns; it rests while the person types."""
    from tinyllm.cli.options import engine_config, sampling_params
    from tinyllm.engine.async_engine import AsyncEngine

    params = sampling_params(args, max_tokens=CHAT_MAX_TOKENS)
    history: Messages = [{"role": "system", "content": args.system}] if args.system else []
    engine = AsyncEngine(engine_config(args))
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            if params.temperature is None and engine.sampling_defaults.temperature is None:
                params = params.model_copy(update={"temperature": CHAT_TEMPERATURE})
            if args.message is not None:
                runner.run(_answer(engine, [*history, _message("user", args.message)], params))
            else:
                _converse(runner, engine, history, params)
        finally:
            runner.run(engine.aclose())
    return 0


def _converse(runner: asyncio.Runner, engine: AsyncEngine, history: Messages, params: SamplingParams) -> None:
    _enable_line_editing()
    print(f"{engine.info.model}. {HELP}", file=sys.stderr)
    while (line := _read_line()) is not None:
        if line == "/exit":
            return
        if line == "/new":
            history[:] = [message for message in history if message["role"] == "system"]
            print("[a new conversation]", file=sys.stderr)
        elif line.startswith("/system "):
            history[:] = [_message("system", line.removeprefix("/system ").strip())]
            print("[a new conversation with this system prompt]", file=sys.stderr)
        elif line.startswith("/"):
            print(HELP, file=sys.stderr)
        elif line.strip():
            _turn(runner, engine, history, line, params)


def _turn(
    runner: asyncio.Runner, engine: AsyncEngine, history: Messages, line: str, params: SamplingParams
) -> None:
    """Answer one line. What was said is kept in the history, also when Ctrl-C stopped it midway."""
    said: list[str] = []
    history.append(_message("user", line))
    try:
        runner.run(_answer(engine, history, params, said))
    except KeyboardInterrupt:
        print(" [stopped]")
    except ContextLengthError as error:
        print(f"[the conversation is too long: {error}; /new starts over]", file=sys.stderr)
    except (InvalidRequestError, RequestError) as error:
        print(f"[{error}]", file=sys.stderr)
    if said:
        history.append(_message("assistant", "".join(said)))
    else:
        history.pop()


async def _answer(
    engine: AsyncEngine, messages: Messages, params: SamplingParams, said: list[str] | None = None
) -> None:
    """Print an answer. Where there is no room for one of `CHAT_MAX_TOKENS`, it may fill the context."""
    try:
        await _print_answer(engine, messages, params, said)
    except ContextLengthError as error:
        if error.param != "max_tokens" or params.max_tokens != CHAT_MAX_TOKENS:
            raise
        await _print_answer(engine, messages, params.model_copy(update={"max_tokens": None}), said)


async def _print_answer(
    engine: AsyncEngine, messages: Messages, params: SamplingParams, said: list[str] | None
) -> None:
    async for piece in engine.chat(messages, params):
        if said is not None:
            said.append(piece.text)
        print(piece.text, end="", flush=True)
        if piece.finish_reason is FinishReason.LENGTH:
            print(" [cut at --max-tokens or the context's end]", end="", file=sys.stderr)
    print()


def _message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def _read_line() -> str | None:
    """Return the next line, or None at the end. Ctrl-C drops what was typed; a second one ends."""
    for last_chance in (False, True):
        try:
            return input("> ")
        except EOFError:
            break
        except KeyboardInterrupt:
            if not last_chance:
                print("\n[Ctrl-C again, Ctrl-D or /exit ends]", file=sys.stderr)
    print()
    return None


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401  importing it gives input() history and editing
    except ImportError:  # not on every platform
        return
