"""The servers that are compared: how each is started on a free port, paused while others run, and ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.arms import ENVIRONMENT, is_importable
from tinyllm.bench.serve.settings import ServerOptions
from tinyllm.errors import EngineError

MODEL_NAME = "model"
PATIENCE = 900.0
"""Seconds until a server must listen: vLLM compiles first."""
STOP_SECONDS = 20.0
MAX_SEQS = 64


@dataclass(frozen=True, slots=True)
class Backend:
    """One server: its command without a port, and what requests to it need."""

    name: str
    command: Sequence[str]
    python: str
    module: str
    """What must be there to import."""
    environment: Mapping[str, str] = field(default_factory=dict)
    extra_body: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def is_installed(self) -> bool:
        """Whether its interpreter has what it needs."""
        return is_importable(self.python, self.module)


def tinyllm_server(model: Path, dtype: str, threads: int, context: int) -> Backend:
    """Return ``tinyllm serve``; as the others' do, its prefix cache serves also those without a key."""
    command = [sys.executable, "-m", "tinyllm", "serve", "--model", str(model), "--dtype", dtype]
    command += ["--num-threads", str(threads), "--max-model-len", str(context)]
    command += ["--max-num-seqs", str(MAX_SEQS), "--served-model-name", MODEL_NAME]
    command += ["--prefix-cache", "process-global", "--no-progress", "--no-access-log"]
    return Backend("tinyllm", command, sys.executable, "tinyllm.server.app")


def vllm_server(python: str, model: Path, dtype: str, threads: int, context: int, *, eager: bool) -> Backend:
    """Return vLLM's server, of its CPU build."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--dtype", dtype]
    command += ["--max-model-len", str(context), "--max-num-seqs", str(MAX_SEQS)]
    command += ["--served-model-name", MODEL_NAME, "--host", "127.0.0.1"]
    command += ["--disable-uvicorn-access-log", "--enable-prompt-tokens-details"]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    return Backend(
        "vllm",
        [*command, *(["--enforce-eager"] if eager else [])],
        python,
        "vllm",
        environment,
        about={"eager": eager},
    )


def llamacpp_server(
    python: str, gguf: Path, threads: int, context: int, end_tokens: Sequence[int]
) -> Backend:
    """Return llama-cpp-python's server, which answers one request at a time and knows no ``ignore_eos``."""
    command = [python, "-m", "llama_cpp.server", "--model", str(gguf), "--model_alias", MODEL_NAME]
    command += ["--n_ctx", str(context), "--n_threads", str(threads), "--n_threads_batch", str(threads)]
    command += ["--interrupt_requests", "false", "--verbose", "false", "--host", "127.0.0.1"]
    biases = ", ".join(f'"{token}": -100' for token in end_tokens)
    return Backend(
        "llama.cpp",
        command,
        python,
        "llama_cpp.server.app",
        extra_body=f'{{"logit_bias": {{{biases}}}}}' if end_tokens else None,
    )


class RunningServer:
    """A server's processes. It is stopped (``SIGSTOP``) until `wake`, so that it disturbs nobody."""

    def __init__(self, backend: Backend, log: Path) -> None:
        """Start it and wait until it listens. Raises `EngineError`."""
        self.backend = backend
        self.port = _free_port()
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [*backend.command, "--port", str(self.port)],
                stdout=output,
                stderr=output,
                env=ENVIRONMENT | dict(backend.environment),
                start_new_session=True,  # a process group of its own, which can be stopped as a whole
            )
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.close()
            raise
        self.rest()

    def options(self, **fields: Any) -> ServerOptions:
        """Return how to ask it."""
        return ServerOptions(
            base_url=f"http://127.0.0.1:{self.port}",
            model=MODEL_NAME,
            extra_body=self.backend.extra_body,
            ignore_eos=True,
            ready_check_timeout_sec=120,
            **fields,
        )

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wake(self) -> None:
        """Let it run."""
        self._signal(signal.SIGCONT)

    def rest(self) -> None:
        """Stop it where it is."""
        self._signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it and its children."""
        self.wake()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if not self.is_alive:
                raise EngineError(
                    f"{self.backend.name} ended with code {self._process.returncode}: see the log"
                )
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise EngineError(f"{self.backend.name} does not listen after {PATIENCE:.0f} s: see the log")

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
