"""``tinyllm tokenize``: show the tokens of a text, or the text of token ids."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllm.cli.streams import read_input
from tinyllm.errors import InvalidRequestError, TokenizerError

if TYPE_CHECKING:
    from tinyllm.text.tokenizer import Tokenizer

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command to ``argparse``'s subparsers."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "tokenize",
        help="show the tokens of a text",
        description="Show the tokens of a text, one a line with its id; or, with --decode, the text of ids.",
    )
    parser.add_argument(
        "text", metavar="TEXT", nargs="+", help="the text, or the ids with --decode; - reads standard input"
    )
    parser.add_argument(
        "--model", metavar="M", help="directory, .gguf file or Hub id (default: the demo model)"
    )
    parser.add_argument(
        "--decode", action="store_true", help="TEXT is token ids, with spaces or commas between"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-special-tokens",
        action="store_true",
        help="put no BOS or EOS around a text; with --decode, leave special tokens out",
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub model")
    parser.add_argument("--cache-dir", type=Path, metavar="PATH", help="where fetched models are kept")
    parser.add_argument("--offline", action="store_true", help="never use the network")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    text = read_input() if args.text == ["-"] else " ".join(args.text)
    tokenizer = _load(args)
    if args.decode:
        ids = _parse_ids(text)
        if unknown := next((each for each in ids if each >= tokenizer.vocab_size), None):
            raise InvalidRequestError(f"{unknown} is not a token id: they are below {tokenizer.vocab_size}.")
        text = tokenizer.decode(ids, skip_special_tokens=args.no_special_tokens)
    else:
        ids = tokenizer.encode(text, add_special_tokens=not args.no_special_tokens)
    if args.json:
        tokens = [tokenizer.token(token_id) for token_id in ids]
        print(json.dumps({"text": text, "token_ids": ids, "tokens": tokens, "count": len(ids)}))
    elif args.decode:
        print(text)
    else:
        for token_id in ids:
            print(f"{token_id:>8}  {_shown(tokenizer.token_bytes(token_id))}")
        print(f"{len(ids)} tokens", file=sys.stderr)
    return 0


def _load(args: argparse.Namespace) -> Tokenizer:
    from tinyllm.artifacts.resolve import open_model
    from tinyllm.text.tokenizer import load_tokenizer

    artifacts = open_model(
        args.model,
        revision=args.revision,
        cache_dir=args.cache_dir,
        offline=args.offline,
        progress=sys.stderr.isatty(),
    )
    if artifacts.tokenizer is None:
        raise TokenizerError(f"{artifacts.name} has no tokenizer.")
    return load_tokenizer(artifacts.tokenizer)


def _parse_ids(text: str) -> list[int]:
    """Read ids as people and programs write them: ``1 2 3``, ``1,2,3`` or ``[1, 2, 3]``."""
    words = text.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if bad := next((word for word in words if not (word.isascii() and word.isdecimal())), None):
        raise InvalidRequestError(f"--decode takes token ids, such as 1 2 3 (got {bad[:40]!r}).")
    return [int(word[:20]) for word in words]


def _shown(data: bytes) -> str:
    """Quote a token, with escapes for what a terminal cannot show; part of a character shows as its bytes."""
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
