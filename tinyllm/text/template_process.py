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
from importlib.util import find_spec
from pathlib import Path
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
_PACKAGES: Final = ("tinyllm", "jinja2", "markupsafe")
_PROGRAM: Final = (
    "import sys; sys.path += sys.argv[2:]; from tinyllm.text.template_worker import main; main()"
)
"""In a Python without ``site``: neither this program's folder nor its ``sitecustomize`` has a say in it."""


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

    def ask(self, source: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what `template_worker.answer` says.

        Raises `ChatTemplateError` where that is an error, or the template went over a limit.
        """
        question = source.encode("utf-8", "surrogatepass"), encoded(variables)
        with self._lock:
            if self._worker is not None and not self._worker.is_ready:
                self._worker.end()
                self._worker = None
            if self._worker is None:
                self._worker = _Worker(self._seconds)
            reply = self._worker.ask(*question)
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
        try:
            self._process, self._stream = _started([str(seconds), *_folders()])
        except OSError as error:
            raise ChatTemplateError(
                f"The process for chat templates could not be started: {error.strerror}."
            ) from None
        self._is_free = True
        self._finalizer = weakref.finalize(self, _end, self._process, self._stream)

    @property
    def is_ready(self) -> bool:
        """Whether it waits for a question: it has not ended, and has been heard out."""
        return self._is_free and self._process.poll() is None

    def ask(self, source: bytes, variables: bytes) -> bytes | None:
        """Return the answer's bytes; None if it ended, does not answer, or answers with too much."""
        self._is_free = False
        try:
            write_frame(self._stream, source)
            write_frame(self._stream, variables)
            reply = read_frame(self._stream, text_limit(len(variables)))
        except OSError:
            return None
        self._is_free = True  # not so after Ctrl-C: an answer is still to come, which is nobody else's
        return reply

    def end(self) -> int:
        """End it, if it has not ended; return how it did: a signal's number, negative, or its exit status."""
        return _end(self._process, self._stream)

    def forget(self) -> None:
        self._finalizer.detach()
        self._process.returncode = 0  # not a child of this program, which need not wait for it


def _started(arguments: list[str]) -> tuple[subprocess.Popen[bytes], BinaryIO]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(_PATIENCE)
        process = subprocess.Popen(  # noqa: S603  our own module, in our own Python
            [sys.executable or "python3", "-P", "-S", "-c", _PROGRAM, *arguments],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            cwd="/",  # this program's may be gone
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,  # so that Ctrl-C in a terminal is not for it
        )
        return process, cast("BinaryIO", ours.makefile("rwb"))  # which keeps the socket open


def _folders() -> list[str]:
    """Return where this program has the packages from that the process needs."""
    specs = map(find_spec, _PACKAGES)
    return [str(Path(spec.origin).parents[1]) for spec in specs if spec is not None and spec.origin]


def _end(process: subprocess.Popen[bytes], stream: BinaryIO) -> int:
    process.kill()
    status = process.wait()
    with suppress(OSError):  # what could not be written
        stream.close()
    return status


def _why(ended: int) -> str:
    if ended == -signal.SIGPROF:
        return "The chat template was stopped: it takes too long."
    return f"The chat template was stopped: its process ended ({ended})."


_shared: Final = TemplateProcess()
os.register_at_fork(after_in_child=_shared.forget)


def shared_process() -> TemplateProcess:
    """Return the one process that all models' templates share."""
    return _shared
