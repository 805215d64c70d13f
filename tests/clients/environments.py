"""Environments of clients: each is a virtual environment with exactly the releases of a file in ``pins/``.

They are made when they are missing (pip has to reach the package index) and kept beside the test checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from filelock import FileLock

from tests.checkpoints import root

PINS = Path(__file__).parent / "pins"
BORROWERS = ("guidellm",)
"""Environments that also see the packages of this one: torch need not be there twice."""


def python_of(name: str) -> Path:
    """Return the interpreter of an environment, made first if it is not there."""
    pins = PINS / f"{name}.txt"
    mark = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = root() / "clients" / f"{name}-{mark}"
    python = place / "bin" / "python"
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        complete = place / "complete"
        if not complete.exists():
            venv.create(place, clear=True, symlinks=True)
            _lend(name, place)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
            subprocess.run([*pip, "-r", str(pins)], check=True, capture_output=True, text=True)
            complete.touch()
        _lend(name, place)  # again, as it may have been made for another environment than this
    return python


def _lend(name: str, place: Path) -> None:
    if name not in BORROWERS:
        return
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")


def environment() -> dict[str, str]:
    """Return what a client sees of this process's environment: nothing that points it elsewhere."""
    foreign = ("OPENAI_", "LITELLM_", "HOSTED_VLLM_", "LANGCHAIN_", "LANGSMITH_", "LLM_", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
