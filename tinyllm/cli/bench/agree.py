"""``tinyllm bench agree``: whether tinyllm chooses the tokens that other engines choose."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyllm.cli.bench.output import check_outputs, note, show
from tinyllm.errors import ConfigError

if TYPE_CHECKING:
    from tinyllm.bench.agree.engines import Peer
    from tinyllm.config import EngineConfig

__all__ = ["add_parser", "run"]


def add_parser(kinds: Any, kind: str, line: str) -> None:
    """Add the parser of the kind."""
    from tinyllm.cli.options import add_engine_options

    parser = kinds.add_parser(
        kind,
        help=line,
        description="Complete the same prompts greedily with tinyllm and with each other engine that is "
        "installed, in float32 unless --dtype says otherwise, and report the first token that differs, with "
        "the margin of the best over the second best there. Exit code 1 if rounding cannot explain one.",
    )
    parser.add_argument(
        "--backends",
        nargs="+",
        choices=("transformers", "llama.cpp", "vllm"),
        help="the others (default: those that are installed; llama.cpp needs --gguf)",
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="one prompt a line (default: eight texts)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=64, metavar="N", help="of each answer (default: 64)"
    )
    parser.add_argument(
        "--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp; converted to --dtype first"
    )
    for name in ("transformers", "llamacpp", "vllm"):
        parser.add_argument(
            f"--{name}-python", metavar="PYTHON", default=sys.executable, help=f"interpreter that has {name}"
        )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything there; - is standard output"
    )
    add_engine_options(parser)


def run(args: argparse.Namespace) -> int:
    """Ask all engines, print the tables, write the JSON."""
    from tinyllm.engine.executor import prepare_for_torch

    prepare_for_torch()  # as an engine does when it is the first to load torch
    from tinyllm.bench.agree.report import PROMPTS, agree_lines, run_agree
    from tinyllm.cli.options import engine_config

    if args.max_tokens < 1:
        raise ConfigError("--max-tokens must be at least 1")
    check_outputs(args.json)
    prompts = list(PROMPTS) if args.prompts is None else _read_prompts(args.prompts)
    if "dtype" not in args:
        args.dtype = "float32"
    config = engine_config(args)
    with tempfile.TemporaryDirectory() as scratch:
        peers = _peers(args, config, Path(scratch))
        report = asyncio.run(run_agree(config, peers, prompts, max_tokens=args.max_tokens, note=note))
    show(report, agree_lines(report), args.json)
    return int(bool(report["left_out"]) or any(pair["different"] for pair in report["pairs"]))


def _read_prompts(path: Path) -> list[str]:
    prompts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not prompts:
        raise ConfigError(f"{path.name} has no prompts: write one a line")
    return prompts


def _peers(args: argparse.Namespace, config: EngineConfig, scratch: Path) -> list[Peer]:
    """Return the engines to ask. Raises `ConfigError` if there is none, or a named one is missing."""
    from tinyllm.bench.agree.engines import Peer

    model, gguf = _model_path(config), args.gguf
    if gguf is None and model.is_file():
        gguf = model
    candidates = {
        "transformers": Peer("transformers", args.transformers_python, model),
        "llama.cpp": Peer("llama.cpp", args.llamacpp_python, gguf or model),
        "vllm": Peer("vllm", args.vllm_python, model),
    }
    found = []
    for name in args.backends or candidates:
        if reason := _why_not(candidates[name], has_gguf=gguf is not None):
            if args.backends or candidates[name].python != sys.executable:  # it was asked for
                raise ConfigError(reason)
            note(f"left out: {reason}")
        else:
            found.append(candidates[name])
    if not found:
        raise ConfigError("there is no other engine here: pip install 'tinyllm[peers]' for transformers")
    return [_converted(peer, config.dtype, scratch) if peer.name == "llama.cpp" else peer for peer in found]


def _why_not(peer: Peer, *, has_gguf: bool) -> str | None:
    if peer.name == "llama.cpp" and not has_gguf:
        return "llama.cpp needs the model as a GGUF file: give it with --gguf"
    if peer.name != "llama.cpp" and peer.model.is_file():
        return f"{peer.name} needs the model as a directory: tinyllm convert makes one of a GGUF file"
    if not peer.is_installed():
        flag = peer.name.replace(".", "")
        if peer.python != sys.executable:
            return f"--{flag}-python: {peer.python!r} is no interpreter that has {peer.name}"
        return f"{peer.name} is not installed here: name an interpreter that has it with --{flag}-python"
    return None


def _converted(peer: Peer, dtype: str, scratch: Path) -> Peer:
    """Give llama.cpp the weights in the dtype in which the others compute, so that all run the same ones."""
    from dataclasses import replace

    from tinyllm.bench.gguf_as import GGUF_TYPES, convert

    if dtype not in GGUF_TYPES:
        raise ConfigError(f"llama.cpp is compared in {' or '.join(GGUF_TYPES)}: use --dtype (got {dtype})")
    target = scratch / "model.gguf"
    convert(peer.model, target, GGUF_TYPES[dtype])
    return replace(peer, model=target)


def _model_path(config: EngineConfig) -> Path:
    """Return where the model's files are, fetched or made if they are not there."""
    from tinyllm.artifacts.demo import demo_directory
    from tinyllm.artifacts.resolve import fetch, open_model

    options: dict[str, Any] = {
        "cache_dir": config.cache_dir,
        "offline": config.offline,
        "progress": config.progress,
    }
    if config.model is None:
        open_model(None, **options)
        return demo_directory(config.cache_dir)
    return fetch(config.model, revision=config.revision, token=config.hub_token, **options).path.resolve()
