"""`Bridge`: the way out. The one file that knows asyncio from trio."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVarTuple, Unpack

from anyio.lowlevel import current_token

__all__ = ["Bridge"]

Ts = TypeVarTuple("Ts")


def _nothing() -> None:
    pass


class Bridge:
    """Runs functions on the event loop it was made in, from any thread, without waiting for them.

    This is the loop's own call (``call_soon_threadsafe`` or trio's ``run_sync_soon``), not
    ``anyio.from_thread.run_sync``, which would hold the executor thread until the loop has time.
    """

    def __init__(self) -> None:
        """Bind to the running event loop; raises ``anyio.NoEventLoopError`` where there is none."""
        token: Any = current_token()
        self._loop = token.native_token
        self._is_asyncio = hasattr(self._loop, "call_soon_threadsafe")
        self._call_soon: Callable[..., object] = (
            self._loop.call_soon_threadsafe if self._is_asyncio else self._loop.run_sync_soon
        )

    def post(self, function: Callable[[Unpack[Ts]], object], *args: *Ts) -> bool:
        """Have the loop call ``function(*args)`` soon, in order of posting; False if the loop is closed.

        ``function`` must not raise: on trio that ends the whole run.
        """
        try:
            self._call_soon(function, *args)
        except RuntimeError:  # asyncio: "Event loop is closed"; trio: RunFinishedError
            return False
        return True

    def call_later(
        self, seconds: float, function: Callable[[Unpack[Ts]], object], *args: *Ts
    ) -> Callable[[], object]:
        """Have the loop call ``function(*args)`` in so many seconds; what is returned calls that off.

        Both only on the loop itself. ``function`` must not raise.
        """
        seconds = max(0.0, seconds)
        if self._is_asyncio:
            cancel: Callable[[], object] = self._loop.call_later(seconds, function, *args).cancel
            return cancel
        import trio

        scope = trio.CancelScope()

        async def wait() -> None:
            with scope:
                await trio.sleep(seconds)
                function(*args)

        trio.lowlevel.spawn_system_task(wait)
        return scope.cancel

    def is_closed(self) -> bool:
        """Whether nothing can run on the loop any more."""
        return not self.post(_nothing)

    def is_here(self) -> bool:
        """Whether the caller runs on this bridge's event loop."""
        try:
            return current_token().native_token is self._loop
        except RuntimeError:  # NoEventLoopError
            return False
