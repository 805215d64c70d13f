"""`Loads`: the jobs of the study, from the command line."""

from __future__ import annotations

import argparse
from dataclasses import replace

from benches.serving.cells import Cell, cells
from benches.serving.servers import RunningServer
from benches.serving.study import Job, Study, say
from tinyllm.bench.capacity.settings import CapacityOptions
from tinyllm.bench.capacity.study import cell_of, forecast, replay, search
from tinyllm.bench.capacity.workload import Workload, unlike
from tinyllm.bench.serve.load import run_load
from tinyllm.bench.serve.planning import make_plan, parse_goodput
from tinyllm.bench.serve.settings import DatasetOptions
from tinyllm.errors import TinyLLMError

ASSUMED_C_REF = 4.0
"""Requests a second, for the forecast before it is known."""
PROBES = 10
"""Of a search, about."""


class Loads:
    """The jobs, from the command line."""

    def __init__(self, args: argparse.Namespace, study: Study) -> None:
        self._args, self._study = args, study
        self._limits = parse_goodput(args.goodput)
        self._workloads: dict[int, Workload] = {}
        """By port: one for each start of a server."""
        self._options = CapacityOptions(
            start_rate=args.start_rate,
            probe_seconds=args.probe_seconds,
            probe_requests=args.probe_requests,
            tolerance=args.tolerance,
            windows=args.windows,
        )

    def jobs(self) -> list[Job]:
        """Return all jobs, in order."""
        found = [self._cell(cell) for cell in cells(self._args.requests, self._args.rate, self._args.context)]
        if self._args.windows:
            options = self._options
            found.append(Job("C_ref", PROBES * 1.5 * options.probe_seconds, self._search))
            found += [
                self._replay(fraction, window)
                for window in range(options.windows)
                for fraction in options.fraction
            ]
        return [
            job for job in found if not self._args.only or any(only in job.name for only in self._args.only)
        ]

    def _cell(self, cell: Cell) -> Job:
        async def run(server: RunningServer) -> None:
            plan = await make_plan(
                server.options(backend=cell.backend),
                cell.dataset_options(str(self._args.model), self._args.seed),
                cell.arrival_options(),
                limits=self._limits,
            )
            samples = unlike(plan.samples, cell.name)  # no load finds its prompts in the cache of another's
            result = await run_load(replace(plan, samples=samples))
            self._study.of(server.backend.name)["cells"].append({"name": cell.name} | cell_of(result))

        return Job(cell.name, cell.seconds(), run)

    async def _search(self, server: RunningServer) -> None:
        found, workload = self._study.of(server.backend.name), self._workload(server)
        found["capacity"] = await search(workload, self._options, note=say)
        if c_ref := found["capacity"]["capacity"]["c_ref"]:
            say(f"its replays: about {forecast(workload, self._options, c_ref) / 60:.0f} minutes")

    def _replay(self, fraction: float, window: int) -> Job:
        async def run(server: RunningServer) -> None:
            report = self._study.of(server.backend.name)["capacity"]
            if report is None or report["capacity"]["c_ref"] is None:
                raise TinyLLMError("it has no C_ref")
            if window and server.backend.name in self._args.one_window:
                raise TinyLLMError("left out: it replays only the first window")
            c_ref = report["capacity"]["c_ref"]
            report["levels"].append(await replay(self._workload(server), c_ref, fraction, window))

        seconds = self._args.num_prompts / (fraction * ASSUMED_C_REF)
        return Job(f"{fraction:g} of C_ref, window {window}", seconds, run)

    def _workload(self, server: RunningServer) -> Workload:
        if server.port not in self._workloads:
            self._workloads[server.port] = Workload(server.options(), self._trace(), limits=self._limits)
        return self._workloads[server.port]

    def _trace(self) -> DatasetOptions:
        args = self._args
        longest = args.context - 16
        return DatasetOptions(
            dataset_name="burstgpt",
            num_prompts=args.num_prompts,
            max_input_len=min(args.max_input_len, longest * 3 // 4),
            max_output_len=min(args.max_output_len, longest // 4),
            num_warmups=4,
            tokenizer=str(args.model),
            seed=args.seed,
        )
