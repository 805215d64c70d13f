"""``tinyllm doctor``: what this machine has, what tinyllm makes of it, and whether it is exact there."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tinyllm.artifacts.model import ModelArtifacts
    from tinyllm.bench.exactness import Check

__all__ = ["add_parser", "run"]

DTYPES: Final = ("float32", "bfloat16", "float16")


def add_parser(commands: Any) -> None:
    """Add the command's parser."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="say what this machine has, and check that the engine is exact on it",
        description="Say what this machine has and which paths tinyllm takes on it. With --check: load the "
        "model in float32 and bfloat16, and check bit for bit that a request's result depends neither on its "
        "batch mates nor on how its prompt is cut, and that the fast attention chooses the reference's "
        "tokens.",
    )
    parser.add_argument("--check", action="store_true", help="check the results, too")
    parser.add_argument(
        "--model", metavar="M", help="directory, .gguf file or Hub id to check with (default: the demo model)"
    )
    parser.add_argument("--revision", metavar="R", help="branch, tag or commit of a Hub model")
    parser.add_argument("--cache-dir", type=Path, metavar="PATH", help="where fetched models are kept")
    parser.add_argument("--offline", action="store_true", help="never use the network")
    parser.add_argument(
        "--num-threads", type=int, metavar="N", help="torch's threads (default: physical cores)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 if a check fails."""
    import torch

    from tinyllm.errors import ConfigError
    from tinyllm.runner.device import default_num_threads

    if args.num_threads is not None and args.num_threads < 1:
        raise ConfigError("--num-threads must be at least 1")
    torch.set_num_threads(args.num_threads or default_num_threads())
    artifacts = _open(args) if args.check or args.model is not None else None
    machine = dict(_machine(artifacts))
    checks = _checks(artifacts) if args.check and artifacts is not None else []
    if args.json:
        shown = [dataclasses.asdict(check) for check in checks]
        print(json.dumps({"machine": machine, "checks": shown}, indent=2))
    else:
        for label, value in machine.items():
            print(f"{label:<20}{value}")
        for check in checks:
            print(f"{check.status:<14}{check.name}: {check.detail}")
    failed = sum(check.status == "FAIL" for check in checks)
    if checks and not args.json:
        print(f"{failed} of {len(checks)} checks failed" if failed else "no check failed")
    return 1 if failed else 0


def _open(args: argparse.Namespace) -> ModelArtifacts:
    from tinyllm.artifacts.resolve import open_model

    return open_model(
        args.model,
        revision=args.revision,
        cache_dir=args.cache_dir,
        offline=args.offline,
        progress=sys.stderr.isatty(),
    )


def _machine(artifacts: ModelArtifacts | None) -> Iterator[tuple[str, str]]:
    """Give what is here: a label and its value."""
    import torch

    from tinyllm.bench.environment import available_memory, environment

    here = environment(torch.get_num_threads())
    yield "tinyllm", f"{here['tinyllm']}" + (f" at {here['commit']}" if here["commit"] else "")
    yield "python", here["python"]
    yield "torch", here["torch"]
    yield "system", here["system"]
    yield "processor", here["cpu"]
    yield "vector instructions", " ".join(here["cpu_features"]) or "unknown"
    yield "cores", f"{here['physical_cores']} physical, {here['cpus']} processors"
    yield "threads", str(here["threads"])
    memory = available_memory()
    yield "free memory", f"{memory / 2**30:.1f} GiB" if memory else "unknown"
    yield "C compiler", _compiler()
    yield "kernels", _kernels()
    for dtype in DTYPES:
        yield dtype, _dtype(dtype)
    yield "attention", _attention(artifacts)


def _compiler() -> str:
    """Say which compiler there is, among those that kernels are built with."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (path := shutil.which(name)):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
            return (done.stdout.splitlines() or [name])[0]
    return "none"


def _kernels() -> str:
    from tinyllm.native.library import NativeUnavailableError, load_library

    try:
        load_library()
    except NativeUnavailableError as error:
        return f"not used: {error}"
    return "built for this processor, and loaded"


def _dtype(name: str) -> str:
    import torch

    from tinyllm.errors import DeviceError
    from tinyllm.models.linear import can_pack
    from tinyllm.runner.device import DTYPES as TORCH_DTYPES
    from tinyllm.runner.device import preflight

    dtype, device = TORCH_DTYPES[name], torch.device("cpu")
    try:
        preflight(device, dtype)
    except DeviceError as error:
        return f"does not run: {error}"
    if can_pack(dtype, device):
        return "runs, matrices packed: fast, and results do not depend on batch mates"
    return "runs, matrices not packed: slower, and results may depend on batch mates in the last bits"


def _attention(artifacts: ModelArtifacts | None) -> str:
    """Say which backend a model like this gets in its own dtype; without one, a model of usual shape."""
    import torch

    from tinyllm.attention.backends import BACKENDS, get_backend
    from tinyllm.attention.metadata import KVCacheSpec
    from tinyllm.errors import ConfigError
    from tinyllm.runner.device import resolve_dtype

    layers, heads, size, dtype = 1, 2, 64, torch.float32
    if artifacts is not None:
        config = artifacts.config
        layers, heads, size = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        dtype = resolve_dtype("auto", config.dtype)
    spec = KVCacheSpec(layers, heads, size, 16, dtype, torch.device("cpu"))
    chosen = get_backend("auto", spec).name
    reasons = []
    for name in BACKENDS:
        if name == chosen:
            break
        try:
            get_backend(name, spec)
        except ConfigError as error:
            reasons.append(str(error))
    return "; ".join([chosen, *reasons])


def _checks(artifacts: ModelArtifacts) -> list[Check]:
    import torch

    from tinyllm.bench.exactness import Check, check_exactness
    from tinyllm.errors import DeviceError
    from tinyllm.runner.device import preflight

    checks: list[Check] = []
    for dtype in (torch.float32, torch.bfloat16):
        try:
            preflight(torch.device("cpu"), dtype)
        except DeviceError as error:
            checks.append(Check(str(dtype).removeprefix("torch."), "not promised", str(error)))
            continue
        checks += check_exactness(artifacts, dtype)
    return checks
