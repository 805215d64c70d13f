"""``tinyllm convert``: turn a GGUF file into an ordinary safetensors directory."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyllm.artifacts.model import TokenizerSource

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command to ``argparse``'s subparsers."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "convert",
        help="turn a GGUF file into a safetensors directory",
        description="Dequantise a GGUF file into a directory that tinyllm and transformers load.",
    )
    parser.add_argument("source", type=Path, metavar="FILE.gguf", help="the file to read")
    parser.add_argument("out", type=Path, metavar="OUT", help="the directory to write")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="of the weights; auto is the file's own, or bfloat16 if it is quantised (default: auto)",
    )
    parser.add_argument("--force", action="store_true", help="replace a model's directory that is there")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")


def run(args: argparse.Namespace) -> int:
    """Convert, and say where the result is."""
    from tinyllm.artifacts.convert import convert_gguf

    convert_gguf(
        args.source,
        args.out,
        write_tokenizer=_write_tokenizer,
        dtype=args.dtype,
        force=args.force,
        progress=not args.no_progress,
    )
    print(f"wrote {args.out}")
    return 0


def _write_tokenizer(source: TokenizerSource, directory: Path) -> None:
    from tinyllm.text.tokenizer import load_tokenizer

    load_tokenizer(source).save(directory)
