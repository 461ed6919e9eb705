"""What the value log does to the disk: one seam, so that a test can lose everything that was not yet synced.

Nothing else in the pump writes to, syncs or removes a value-log file.
"""

from __future__ import annotations

import io
import os
from pathlib import Path


class Handle(io.FileIO):
    """A file that closes itself when its last reader lets go of it, however late that is after its removal."""

    def __del__(self) -> None:
        self.close()


class Files:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> io.FileIO:
        """A handle to read and append. Raises FileNotFoundError, or FileExistsError when it should be new."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return Handle(os.open(path, flags, 0o644), "r+")

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        """Write at the end; how many bytes were taken."""
        return os.write(file.fileno(), data)

    def truncate(self, file: io.FileIO, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(file.fileno(), size)

    def sync(self, file: io.FileIO) -> None:
        """Make the file's content durable."""
        os.fdatasync(file.fileno())

    def remove(self, path: Path) -> None:
        """Take the name away; handles that are open can still read."""
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        """Make the names in `directory` durable: a file just created may otherwise vanish with the power."""
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
