"""``tinyllm inspect``: say what a model is and what it needs, without loading it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyllm.artifacts.report import ModelReport

__all__ = ["add_parser", "run"]

DTYPES = ("auto", "float32", "bfloat16", "float16")


def add_parser(subparsers: Any) -> None:
    """Add the command to ``argparse``'s subparsers."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "inspect",
        help="say what a model is and what it needs, without loading it",
        description="Say what a model is, whether it can be generated with, and what memory it needs. "
        "Only headers are read; a model of the Hub is fetched first.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="directory, .gguf file or Hub id (default: the demo model)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with every tensor")
    parser.add_argument(
        "--max-model-len", type=int, metavar="N", help="tokens to forecast for (default: the model's context)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="of the weights in the forecast")
    parser.add_argument(
        "--kv-cache-dtype", choices=DTYPES, default="auto", help="of keys and values in the forecast"
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub model")
    parser.add_argument("--cache-dir", type=Path, metavar="PATH", help="where fetched models are kept")
    parser.add_argument("--offline", action="store_true", help="never use the network")


def run(args: argparse.Namespace) -> int:
    """Print the report. A model that cannot be generated with is no failure of this command."""
    from tinyllm.artifacts.inspect import inspect_named

    report = inspect_named(
        args.model,
        max_model_len=args.max_model_len,
        dtype=args.dtype,
        kv_cache_dtype=args.kv_cache_dtype,
        revision=args.revision,
        cache_dir=args.cache_dir,
        offline=args.offline,
        progress=sys.stderr.isatty(),
    )
    if args.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        print("\n".join(_lines(report)))
    return 0


def _lines(report: ModelReport) -> Iterator[str]:
    for label, value in _rows(report):
        yield f"{label:<16}{value}".rstrip()


def _rows(report: ModelReport) -> Iterator[tuple[str, str]]:
    """Give the report's lines: a label and its value; a line without label goes on with the one before."""
    revision = f" at {report.revision}" if report.revision else ""
    yield "model", f"{_printable(report.name)} ({report.kind}{revision})"
    yield "architecture", _printable(report.architecture or "unknown")
    yield "generates", "yes" if report.can_generate else f"no: {report.reason}"
    yield "parameters", _count(report.num_parameters)
    for number, stored in enumerate(report.stored_dtypes):
        size = _size(stored.num_bytes)
        yield "" if number else "stored as", f"{stored.dtype}: {size} in {stored.num_tensors} tensors"
    if report.config:
        yield from _shape_rows(report.config)
    context = report.context_length
    yield "context", "unknown" if context is None else f"{context:,} tokens"
    yield "tokenizer", report.tokenizer or "none: prompts must be token ids"
    yield "chat templates", ", ".join(map(_printable, report.chat_templates)) or "none"
    yield "EOS ids", ", ".join(map(str, report.eos_token_ids)) or "none in the config files"
    defaults = (f"{name}={value:g}" for name, value in report.sampling_defaults.items())
    yield "sampling", ", ".join(defaults) or "no defaults"
    if memory := report.memory:
        yield "memory", f"{_size(memory.weights_bytes)} weights in {memory.dtype}"
        yield "", f"{_size(memory.kv_bytes_per_token)} KV cache per token in {memory.kv_cache_dtype}"
        yield "", f"{_size(memory.kv_cache_bytes)} KV cache for {memory.max_model_len:,} tokens"
        yield "", f"{_size(memory.total_bytes)} together, for one sequence and without activations"


def _shape_rows(config: Any) -> Iterator[tuple[str, str]]:
    def value(name: str) -> str:
        return _printable(str(config.get(name, "?")))

    yield "layers", f"{value('num_hidden_layers')} of width {value('hidden_size')}"
    yield "attention", f"{value('num_attention_heads')} heads, {value('num_key_value_heads')} KV heads"
    yield "MLP", f"width {value('intermediate_size')}"
    yield (
        "vocabulary",
        f"{value('vocab_size')} rows" + (", head tied" if config.get("tie_word_embeddings") is True else ""),
    )
    rope = config.get("rope")
    if isinstance(rope, dict):
        stretch = "" if rope["kind"] == "default" else f", factor {rope['factor']:g}"
        yield "rope", f"{rope['kind']}, theta {rope['theta']:g}{stretch}"


def _count(number: int | None) -> str:
    if number is None:
        return "unknown"
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if number >= unit:
            return f"{number:,} ({number / unit:.3g} {name})"
    return f"{number:,}"


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def _printable(text: str) -> str:
    """Keep what a file says from driving the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])
