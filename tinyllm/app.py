"""The application for an ASGI server of your own: ``hypercorn tinyllm.app:app``.

Options come from ``TINYLLM_*`` variables. Nothing is loaded at import; the model is loaded in the background
once the server runs, so a server's own limit on starting does not matter. ``tinyllm serve`` is the safer way:
it also sees to addresses, connections, cleartext HTTP/2 and orderly draining, which here is left to the ASGI
server.
"""

from __future__ import annotations

import asyncio
import os

from tinyllm.server.app import create_app
from tinyllm.server.logs import set_up_logs, warn_of_unknown_variables
from tinyllm.server.run import LAST_WORDS, exit_code_of
from tinyllm.server.service import Service
from tinyllm.server.settings import ServerConfig

__all__ = ["app"]

config = ServerConfig()
set_up_logs(config)
warn_of_unknown_variables()
app = create_app(config)


@app.before_serving
async def _end_with_the_engine() -> None:
    """Watch the engine: a server without one must not live on."""
    app.extensions["tinyllm.watch"] = asyncio.create_task(_exit_when_failed(app.extensions["tinyllm"]))


@app.after_serving
async def _stop_watching() -> None:
    app.extensions["tinyllm.watch"].cancel()


async def _exit_when_failed(service: Service) -> None:
    fault = await service.wait_failed()
    await asyncio.sleep(LAST_WORDS)  # for responses to end
    os._exit(exit_code_of(fault))  # an ASGI server has no way to be told a status
