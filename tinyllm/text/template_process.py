"""`TemplateProcess`: where chat templates run, apart from everything they could hold up or hurt."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO, Final, cast

from tinyllm.errors import ChatTemplateError
from tinyllm.text.template_frames import decoded, encoded, read_frame, text_limit, write_frame

__all__ = ["MAX_SECONDS", "TemplateProcess", "shared_process"]

MAX_SECONDS: Final = 1.0
"""Of processor time for one template: waiting for a busy machine does not count."""
_PATIENCE: Final = 60.0
"""Seconds to wait for a sign of the process: longer than any template may run, also on a busy machine."""
_ENVIRONMENT: Final = ("LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "TZ")
"""All that the process gets to know: no keys, no tokens."""


class TemplateProcess:
    """A process of its own for templates, started with the first question. Thread-safe.

    Neither a thread nor Jinja can end a template that runs or grows for ever, but the system can end a
    process: see `tinyllm.text.template_worker`. After that the next question starts another. Questions are
    asked one at a time.
    """

    def __init__(self, seconds: float = MAX_SECONDS) -> None:
        """Let each question take so many seconds of processor time."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._worker: _Worker | None = None

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `template_worker.answer` says.

        Raises `ChatTemplateError` where that is an error, or the template went over a limit.
        """
        data = encoded(question)
        with self._lock:
            if self._worker is None or not self._worker.is_alive:
                self._worker = _Worker(self._seconds)
            reply = self._worker.ask(data)
            if reply is None:
                ended, self._worker = self._worker.end(), None
                raise ChatTemplateError(_why(ended))
        answer: dict[str, Any] = decoded(reply)
        if "error" in answer:
            raise ChatTemplateError(answer["error"])
        return answer

    def forget(self) -> None:
        """Leave the process to whoever started it: this is a fork, which must not ask it."""
        self._lock = threading.Lock()
        if self._worker is not None:
            self._worker.forget()
            self._worker = None


class _Worker:
    """The running process. It ends with this object, or with the program."""

    def __init__(self, seconds: float) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_PATIENCE)
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own module, in our own Python
                [sys.executable, "-P", "-m", "tinyllm.text.template_worker", str(seconds)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,  # so that Ctrl-C in a terminal is not for it
            )
        except OSError as error:
            ours.close()
            raise ChatTemplateError(
                f"The process for chat templates could not be started: {error.strerror}."
            ) from None
        finally:
            theirs.close()
        self._stream = cast("BinaryIO", ours.makefile("rwb"))
        ours.close()  # the stream has it now
        self._finalizer = weakref.finalize(self, _end, self._process, self._stream)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, data: bytes) -> bytes | None:
        """Return the answer's bytes; None if it ended, does not answer, or answers with too much."""
        try:
            write_frame(self._stream, data)
            return read_frame(self._stream, text_limit(len(data)))
        except OSError:
            return None

    def end(self) -> int:
        """End it, if it has not ended; return how it did: a signal's number, negative, or its exit status."""
        self._finalizer()
        return self._process.wait()

    def forget(self) -> None:
        self._finalizer.detach()


def _end(process: subprocess.Popen[bytes], stream: BinaryIO) -> None:
    process.kill()
    process.wait()
    with suppress(OSError):  # what could not be written
        stream.close()


def _environment() -> dict[str, str]:
    passed_on = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return passed_on | {"PYTHONPATH": os.pathsep.join(sys.path)}


def _why(ended: int) -> str:
    if ended == -signal.SIGPROF:
        return "The chat template was stopped: it takes too long."
    return f"The chat template was stopped: its process ended ({ended})."


_shared: Final = TemplateProcess()
os.register_at_fork(after_in_child=_shared.forget)


def shared_process() -> TemplateProcess:
    """Return the one process that all models' templates share."""
    return _shared
