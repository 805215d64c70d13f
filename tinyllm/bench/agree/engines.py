"""The engines that answer: tinyllm in this process, each other one in a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tinyllm.bench.agree.answers import Answer
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.errors import TinyLLMError
from tinyllm.outputs import TokenLogprob
from tinyllm.params import SamplingParams

__all__ = ["PEERS", "Job", "Peer", "PeerFailedError", "answers_of_tinyllm", "ask"]

PEERS: Final = {"transformers": "transformers", "llama.cpp": "llama_cpp", "vllm": "vllm"}
"""Engine -> what must be there to import."""
PATIENCE: Final = 1800.0
"""Seconds after which a peer that has not finished is ended."""
_WORKER: Final = Path(__file__).parent / "worker.py"


class PeerFailedError(TinyLLMError):
    """Another engine ended without its answers."""

    code = "peer_failed"


@dataclass(frozen=True, slots=True)
class Peer:
    """Another engine: the interpreter of its environment, and the model as it wants it."""

    name: str
    python: str
    model: Path

    def is_installed(self) -> bool:
        """Whether its environment has it."""
        code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
        try:
            done = subprocess.run(  # noqa: S603
                [self.python, "-c", code, PEERS[self.name]], check=False, capture_output=True
            )
        except OSError:
            return False
        return done.returncode == 0


@dataclass(frozen=True, slots=True)
class Job:
    """What every engine does alike."""

    prompts: Sequence[Sequence[int]]
    dtype: str
    threads: int
    max_tokens: int


def ask(peer: Peer, job: Job) -> tuple[str, list[Answer]]:
    """Return another engine's version and answers. Raises `PeerFailedError`, with its last words."""
    request = {
        "model": str(peer.model),
        "dtype": job.dtype,
        "threads": job.threads,
        "max_tokens": job.max_tokens,
        "prompts": [list(prompt) for prompt in job.prompts],
    }
    try:
        with tempfile.TemporaryDirectory() as empty:  # a module beside the caller must not hide a library
            done = subprocess.run(  # noqa: S603
                [peer.python, str(_WORKER), peer.name],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
                cwd=empty,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerFailedError(f"{peer.name}: {type(error).__name__}") from error
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != 1 + len(job.prompts):
        words = done.stderr.strip().splitlines()
        raise PeerFailedError(f"{peer.name}: {words[-1][:300] if words else 'it ended without a word'}")
    found = [json.loads(line) for line in lines]
    return found[0]["version"], [
        Answer(tuple(each["token_ids"]), tuple(each["runners_up"]), tuple(each["margins"]))
        for each in found[1:]
    ]


async def answers_of_tinyllm(engine: AsyncEngine, job: Job) -> list[Answer]:
    """Return what tinyllm answers, to all prompts at once."""
    params = SamplingParams(temperature=0.0, max_tokens=job.max_tokens, ignore_eos=True, logprobs=2)
    streams = [engine.generate(list(prompt), params) for prompt in job.prompts]
    results = await asyncio.gather(*(stream.result() for stream in streams))
    return [_answer(result.choices[0].logprobs or ()) for result in results]


def _answer(steps: Iterable[TokenLogprob]) -> Answer:
    chosen = []
    for step in steps:
        other = next(each for each in step.top if each.token_id != step.token_id)
        chosen.append((step.token_id, other.token_id, step.logprob - other.logprob))
    token_ids, runners_up, margins = zip(*chosen, strict=True)
    return Answer(token_ids, runners_up, margins)
