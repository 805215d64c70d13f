"""`ending_signals`: what tells a server to end."""

from __future__ import annotations

import signal

__all__ = ["ending_signals"]


def ending_signals() -> list[signal.Signals]:
    """Return Ctrl-C, SIGTERM, and SIGHUP (a closed terminal) unless it is ignored, as under nohup."""
    found = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        found.append(signal.SIGHUP)
    return found
