"""`Study`: does jobs with all servers in turn, and keeps what was measured whatever fails."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.arms import version_of
from benches.serving.servers import Backend, RunningServer
from tinyllm.bench.environment import environment
from tinyllm.errors import EngineError, TinyLLMError

LOAD_OPTIONS = (
    "context",
    "rate",
    "start_rate",
    "tolerance",
    "probe_seconds",
    "probe_requests",
    "one_window",
    "only",
)
"""What decides the loads, beside what the result names by itself."""
ALIVE_SECONDS = 0.5
"""Between two looks at whether a server still runs."""


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement, made of each server in turn."""

    name: str
    seconds: float
    """About how long it takes, with one server."""
    run: Callable[[RunningServer], Coroutine[Any, Any, None]]


class Study:
    """The servers, what was measured of them, and where it is saved."""

    def __init__(self, args: argparse.Namespace, stem: Path) -> None:
        self._args, self._stem = args, stem
        self._started = time.monotonic()
        self._random = random.Random(args.seed)
        self._servers: dict[str, RunningServer] = {}
        self.result: dict[str, Any] = {
            "schema": 1,
            "kind": "serving",
            "metadata": {
                "environment": environment(args.threads),
                "model": args.model.name,
                "dtype": args.dtype,
                "num_prompts": args.num_prompts,
                "max_input_len": args.max_input_len,
                "max_output_len": args.max_output_len,
                "windows": args.windows,
                "requests": args.requests,
                "goodput": list(args.goodput),
                "seed": args.seed,
                "options": {name: getattr(args, name) for name in LOAD_OPTIONS},
            },
            "backends": {},
        }

    async def run(self, backends: Sequence[Backend], jobs: Sequence[Job]) -> None:
        """Do all jobs, or as many as there is time for."""
        for backend in backends:
            self.result["backends"][backend.name] = {
                "about": {"version": version_of(backend.python, backend.module), **backend.about},
                "capacity": None,
                "cells": [],
                "failures": {},
            }
            self._start(backend)
        self._say_forecast(jobs)
        try:
            for number, job in enumerate(jobs):
                order = list(backends)
                self._random.shuffle(order)
                for backend in order:
                    await self._measure(job, backend)
                self._say_progress(jobs, number + 1)
        finally:
            for server in self._servers.values():
                server.close()

    def of(self, name: str) -> dict[str, Any]:
        """Return what was measured of a server so far."""
        found: dict[str, Any] = self.result["backends"][name]
        return found

    def save(self) -> None:
        """Write the result so far."""
        Path(f"{self._stem}.json").write_text(json.dumps(self.result) + "\n")

    def _start(self, backend: Backend) -> None:
        say(f"starting {backend.name}")
        try:
            self._servers[backend.name] = RunningServer(backend, self._stem.parent / "servers.log")
        except TinyLLMError as error:
            self._failed(backend, "start", error)

    async def _measure(self, job: Job, backend: Backend) -> None:
        """Make one measurement; whatever goes wrong is of this server and this load alone."""
        minutes = self._args.minutes
        if minutes is not None and time.monotonic() - self._started > 60 * minutes:
            self.of(backend.name)["failures"][job.name] = "left out: no time"
            return
        server = self._servers.get(backend.name)
        if server is not None and not server.is_alive:
            self._start(backend)
            server = self._servers[backend.name]
        if server is None or not server.is_alive:
            return
        say(f"{job.name}: {backend.name}")
        server.wake()
        try:
            async with asyncio.timeout(60 * self._args.job_minutes):
                await while_alive(server, job.run(server))
        except (TinyLLMError, OSError, TimeoutError) as error:
            self._failed(backend, job.name, error)
        finally:
            server.rest()
            self.save()

    def _failed(self, backend: Backend, what: str, error: Exception) -> None:
        words = str(error) or type(error).__name__
        self.of(backend.name)["failures"][what] = words
        say(f"{backend.name}, {what}: {words}")

    def _say_forecast(self, jobs: Sequence[Job]) -> None:
        total = sum(job.seconds for job in jobs) * len(self._servers) / 60
        say(f"{len(jobs)} measurements of {len(self._servers)} servers: a guess is {total:.0f} minutes")

    def _say_progress(self, jobs: Sequence[Job], done: int) -> None:
        spent = time.monotonic() - self._started
        left = sum(job.seconds for job in jobs[done:]) / sum(job.seconds for job in jobs[:done]) * spent
        say(f"{done} of {len(jobs)} done in {spent / 60:.1f} minutes; about {left / 60:.0f} more")


async def while_alive(server: RunningServer, work: Coroutine[Any, Any, None]) -> None:
    """Do some work, but not longer than the server lives. Raises `EngineError`, and what the work raises."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=ALIVE_SECONDS)
            if not server.is_alive:
                raise EngineError("the server ended: see the log")
        await task
    finally:
        task.cancel()


def say(line: str) -> None:
    """Say how far it is."""
    print(line, file=sys.stderr, flush=True)
