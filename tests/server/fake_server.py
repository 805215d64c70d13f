"""A server process over the fakes, for tests on real sockets: ``python -m tests.server.fake_server``.

Options come from ``TINYLLM_*`` variables. A prompt with a bell in it kills the engine.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import NoReturn

from tests.fakes import FakeRunner, build_fake_core
from tinyllm.core.step import ModelRunnerOutput, SchedulerOutput
from tinyllm.engine.async_engine import AsyncEngine
from tinyllm.server.logs import set_up_logs
from tinyllm.server.run import end_process, run_server
from tinyllm.server.settings import ServerConfig

STEP_SECONDS = "FAKE_STEP_SECONDS"


class PacedRunner(FakeRunner):
    """Takes its time, and may die."""

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        time.sleep(float(os.environ.get(STEP_SECONDS, "0")))
        if any(7 in item.request.prompt_token_ids for item in scheduler_output.scheduled):
            raise RuntimeError("the bell rang")
        return super().execute_model(scheduler_output)


async def main() -> NoReturn:
    config = ServerConfig()
    set_up_logs(config)
    build = partial(build_fake_core, runner=PacedRunner(), num_blocks=4096)
    end_process(await run_server(config, AsyncEngine(config.engine_config, _build=build)))


if __name__ == "__main__":
    asyncio.run(main())
