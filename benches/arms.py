"""The engines that are compared: how each is started, asked and paused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyllm.bench.environment import peak_memory

ENVIRONMENT = dict(os.environ)
"""Of the workers: as it was before this process set anything for itself."""
ROOT = Path(__file__).parent.parent
PATIENCE = 900.0
"""Seconds after which a worker that does not answer is ended."""


class ArmFailedError(Exception):
    """A worker ended, or did not answer."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One engine: the interpreter of its environment, its module in ``peers/``, and the model it loads."""

    name: str
    python: str
    worker: str
    model: Path
    module: str
    """What must be there to import."""

    def is_installed(self) -> bool:
        """Whether its environment has what it needs."""
        return is_importable(self.python, self.module)


def is_importable(python: str, module: str) -> bool:
    """Whether an interpreter has a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    done = subprocess.run([python, "-c", code], check=False, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def version_of(python: str, module: str) -> str | None:
    """Return the version of the package that an interpreter has a module from; None if there is none."""
    package = module.partition(".")[0]
    code = (
        "import importlib.metadata as found; "
        f"print(found.version(found.packages_distributions().get({package!r}, [{package!r}])[0]))"
    )
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


class Worker:
    """A process that has one arm's model loaded. While it is not asked it is stopped, and disturbs nobody."""

    def __init__(self, arm: Arm, dtype: str, environment: Mapping[str, str], log: Path) -> None:
        """Start it and wait until it has generated a token. Raises `ArmFailedError`."""
        self.arm = arm
        self._log = log.open("a")
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [arm.python, "-m", f"benches.peers.{arm.worker}", str(arm.model), dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            env=environment,
            start_new_session=True,  # a process group of its own, which can be stopped as a whole
        )
        self.about = self._read_line()
        self.first_token_seconds = time.perf_counter() - started
        self._signal(signal.SIGSTOP)

    def measure(self, workload: str, seed: int) -> dict[str, Any]:
        """Return what the worker measured, and the CPU time that took. Raises `ArmFailedError`."""
        cpu = self._cpu_seconds()
        self._signal(signal.SIGCONT)
        try:
            if self._process.stdin is None:
                raise ArmFailedError(f"{self.arm.name} has no input")
            self._process.stdin.write(f"{workload} {seed}\n")
            self._process.stdin.flush()
            answer = self._read_line()
            return answer | {"cpu_seconds": self._cpu_seconds() - cpu}
        except BrokenPipeError:
            raise ArmFailedError(f"{self.arm.name} has ended") from None
        finally:
            self._signal(signal.SIGSTOP)

    def peak_memory(self) -> int:
        """Return the most memory all its processes have held, in bytes, added up."""
        return sum(peak_memory(pid) for pid in _process_group(self._process.pid))

    def _cpu_seconds(self) -> float:
        ticks = 0
        for pid in _process_group(self._process.pid):
            fields = _stat(pid)
            ticks += int(fields[11]) + int(fields[12]) if fields else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it and its children."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read_line(self) -> dict[str, Any]:
        watchdog = threading.Timer(PATIENCE, self._signal, (signal.SIGKILL,))
        watchdog.start()
        try:
            line = next(filter(_is_answer, self._process.stdout or ()), "")
        finally:
            watchdog.cancel()
        if not line:
            raise ArmFailedError(f"{self.arm.name} ended without an answer; see {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def _is_answer(line: str) -> bool:
    """Tell a worker's answers from what libraries print while they load."""
    return line.startswith("{")


def _process_group(leader: int) -> list[int]:
    """Return the processes of a group, where the system lists them."""
    pids = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if (fields := _stat(pid)) and int(fields[2]) == leader]


def _stat(pid: int) -> list[str]:
    """Return what Linux says of a process, from its state on; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
