"""Opening files safely: regular files only, none larger than it may be; a model's, none outside the model."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from tinyllm.errors import CheckpointError, ConfigError

__all__ = ["MIB", "CheckedFile", "ModelDirectory", "read_at", "read_option_file"]

MIB: Final = 1 << 20

_OPEN_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)  # a pipe put in place of the file must not block us
    | getattr(os, "O_NOFOLLOW", 0)  # the path is resolved already: a link there now is a swap
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A regular file inside the model, as it was when it was checked."""

    name: str
    """Its name inside the model, for messages."""
    path: Path
    """Fully resolved."""
    size: int
    mtime_ns: int
    inode: int

    def open(self) -> BinaryIO:
        """Open unbuffered for reading. Raises `CheckpointError` if it is not the file that was checked."""
        try:
            descriptor = os.open(self.path, _OPEN_FLAGS)
        except OSError as error:
            raise CheckpointError(f"cannot be opened: {error.strerror}", file=self.name) from None
        file = os.fdopen(descriptor, "rb", buffering=0)
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns, status.st_ino) != (self.size, self.mtime_ns, self.inode):
            file.close()
            raise CheckpointError("changed while it was in use; load the model again", file=self.name)
        return file

    def read(self, limit: int) -> bytes:
        """Return the whole content, of at most ``limit`` bytes."""
        if self.size > limit:
            raise CheckpointError(
                f"has {self.size:,} bytes, more than the {limit:,} that such a file may have", file=self.name
            )
        content = bytearray(self.size)
        with self.open() as file:
            read_at(file, 0, memoryview(content), self.name)
        return bytes(content)

    def read_text(self, limit: int) -> str:
        """Return the content, of at most ``limit`` bytes, as UTF-8 text."""
        try:
            return self.read(limit).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"is not UTF-8 text (byte {error.start})", file=self.name) from None


def read_at(file: BinaryIO, offset: int, into: memoryview, name: str) -> None:
    """Fill ``into`` with the bytes at ``offset``. Raises `CheckpointError` when the file ends before that."""
    try:
        file.seek(offset)
        filled = 0
        while filled < len(into):
            count = file.readinto(into[filled:])  # type: ignore[attr-defined]  # an unbuffered FileIO
            if not count:
                raise CheckpointError(
                    f"ends at byte {offset + filled:,}, before byte {offset + len(into):,}; it was cut short",
                    file=name,
                )
            filled += count
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", file=name) from None


class ModelDirectory:
    """A directory with a model's files, which cannot lead out of it.

    A link may point to a file inside the directory or, in a snapshot of the Hub's cache, into the
    ``blobs`` folder of the same repository, where the cache keeps the content.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._roots = [self.path]
        if self.path.parent.name == "snapshots":
            self._roots.append(self.path.parent.parent / "blobs")

    def names(self, folder: str = "") -> list[str]:
        """Return the names in the directory, or in one of its folders, sorted; [] if there is none."""
        try:
            names = os.listdir(self.path / folder)
        except OSError:
            return []
        return sorted(f"{folder}/{name}" if folder else name for name in names)

    def find(self, name: str) -> CheckedFile | None:
        """Return the file, or None if there is none.

        Raises `CheckpointError` if it is something else than a regular file inside the model.
        """
        try:
            path = (self.path / name).resolve(strict=True)
            status = path.stat()
        except FileNotFoundError:
            if (self.path / name).is_symlink():
                raise CheckpointError("is a link to a file that is not there", file=name) from None
            return None
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links that go round in circles
            reason = getattr(error, "strerror", None) or "its links or its name are not valid"
            raise CheckpointError(f"cannot be read: {reason}", file=name) from None
        if not any(path.is_relative_to(root) for root in self._roots):
            raise CheckpointError(
                "leads out of the model's directory; put the file itself, or a link that stays inside, there",
                file=name,
            )
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError("is not a regular file", file=name)
        return CheckedFile(name, path, status.st_size, status.st_mtime_ns, status.st_ino)


def read_option_file(path: Path, what: str, limit: int = MIB) -> str:
    """Return the UTF-8 text of a file that an option names; ``what`` says in messages what it is.

    Raises `ConfigError` if it cannot be read, is no regular file (a device may never end, a pipe may never
    begin) or has more than ``limit`` bytes.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        with os.fdopen(os.open(path.expanduser(), flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{what} is not a regular file: {path.name}")
            content = file.read(limit + 1)
        if len(content) > limit:
            raise ConfigError(f"{what} has more than the {limit:,} bytes that it may have: {path.name}")
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} is not UTF-8 text (byte {error.start}): {path.name}") from None
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a zero byte; RuntimeError: no home
        if isinstance(error, ConfigError):
            raise
        reason = getattr(error, "strerror", None) or "its name is not valid"
        raise ConfigError(f"{what} cannot be read: {path.name[:80]} ({reason})") from None
