"""``tinyllm generate``: complete one prompt, streaming, and say what it took."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from typing import TYPE_CHECKING, Any

from tinyllm.cli.streams import read_input
from tinyllm.errors import ConfigError, InvalidRequestError

if TYPE_CHECKING:
    from tinyllm.engine.async_engine import AsyncEngine
    from tinyllm.engine.stream import TokenStream

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command's parser."""
    from tinyllm.cli.options import add_engine_options, add_sampling_options

    parser = commands.add_parser(
        "generate",
        help="complete a prompt",
        description="Complete a prompt: greedily unless --temperature says otherwise, and 128 tokens at most "
        "unless --max-tokens does.",
    )
    parser.add_argument(
        "--prompt", "-p", metavar="TEXT", help="the prompt; - or nothing reads standard input"
    )
    parser.add_argument(
        "--chat", action="store_true", help="put the prompt through the model's chat template"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of streaming text")
    parser.add_argument(
        "--quiet", "-q", action="store_true", help="no progress bars and no timing on standard error"
    )
    add_sampling_options(parser)
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    return asyncio.run(_generate(args))


async def _generate(args: argparse.Namespace) -> int:
    from tinyllm.cli.options import engine_config, sampling_params
    from tinyllm.engine.async_engine import AsyncEngine

    if args.quiet:
        args.progress = False
    if not args.json and {"logprobs", "prompt_logprobs"} & vars(args).keys():
        raise ConfigError("--logprobs and --prompt-logprobs are shown with --json only: add it")
    prompt = _prompt(args.prompt)
    params = sampling_params(args, temperature=0.0, max_tokens=128)
    async with AsyncEngine(engine_config(args)) as engine:
        messages = [{"role": "user", "content": prompt}]
        stream = engine.chat(messages, params) if args.chat else engine.generate(prompt, params)
        if args.json:
            await _print_json(engine, stream)
        else:
            await _print_text(engine, stream, quiet=args.quiet)
    return 0


def _prompt(given: str | None) -> str:
    if given not in (None, "-"):
        return str(given)
    if sys.stdin.isatty():
        raise InvalidRequestError("no prompt: give --prompt TEXT, or pipe one in", param="prompt")
    return read_input()


async def _print_text(engine: AsyncEngine, stream: TokenStream, *, quiet: bool) -> None:
    """Print the first answer while it is made; the others, if there are any, after it."""
    others: dict[int, list[str]] = {}
    async for piece in stream:
        if piece.index == 0:
            print(piece.text, end="", flush=True)
        else:
            others.setdefault(piece.index, []).append(piece.text)
    print()
    for index, texts in sorted(others.items()):
        print(f"--- answer {index + 1}\n{''.join(texts)}")
    if not quiet:
        print(_timing_line(engine, await stream.result()), file=sys.stderr)


async def _print_json(engine: AsyncEngine, stream: TokenStream) -> None:
    result = await stream
    report = {
        "model": dataclasses.asdict(engine.info),
        "params": result.params.model_dump(),
        "prompt_token_ids": result.prompt_token_ids,
        "choices": [dataclasses.asdict(choice) for choice in result.choices],
        "prompt_logprobs": [entry and dataclasses.asdict(entry) for entry in result.prompt_logprobs or ()],
        "usage": dataclasses.asdict(result.usage),
        "timing": _timing(engine, result),
    }
    print(json.dumps(report, ensure_ascii=False, indent=2, default=_jsonable))


def _jsonable(value: object) -> object:
    return list(value) if isinstance(value, bytes) else str(value)


def _timing(engine: AsyncEngine, result: Any) -> dict[str, float | None]:
    metrics = result.metrics
    gap = metrics.mean_inter_token
    return {
        "load_seconds": engine.info.load_seconds,
        "time_to_first_token_seconds": metrics.time_to_first_token,
        "tokens_per_second": 1 / gap if gap else None,
        "peak_memory_bytes": peak_memory(),
    }


def _timing_line(engine: AsyncEngine, result: Any) -> str:
    timing, info = _timing(engine, result), engine.info
    parts = [f"load {timing['load_seconds']:.2f} s"]
    if timing["time_to_first_token_seconds"] is not None:
        parts.append(f"first token {timing['time_to_first_token_seconds'] * 1e3:.0f} ms")
    if timing["tokens_per_second"]:
        parts.append(f"{timing['tokens_per_second']:.1f} tokens/s")
    parts.append(f"{result.usage.prompt_tokens} + {result.usage.completion_tokens} tokens")
    parts.append(f"peak memory {peak_memory() / 2**20:.0f} MiB")
    revision = f" @ {info.revision[:12]}" if info.revision else ""
    parts.append(f"{info.model}{revision} in {info.dtype} on {info.device}")
    parts.append(f"{info.attention_backend} attention, {info.layers} layers")
    return "[" + " · ".join(parts) + "]"


def peak_memory() -> int:
    """Return the most memory this process has held, in bytes; 0 where the platform does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
