"""All disk operations of the pump's storage in one class, so that a test can discard everything not yet synced.

No other module of the storage touches a file of the data directory, except LevelDB (its own files) and the lock. A
handle is only ever passed to the `Files` that opened it.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from binlake.base.localfiles import replace_file, sync_folder


class Handle(io.FileIO):
    """A file that closes itself when its last reader drops the handle, even long after the file was removed."""

    def __del__(self) -> None:
        self.close()


class Files:
    """The operating system's files. Every method raises OSError."""

    def build_directory(self, directory: Path) -> None:
        """Create the directory and missing parents, durably; existing ones are left unchanged."""
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for made in reversed(missing):
            sync_folder(made.parent)

    def list_names(self, directory: Path) -> list[str]:
        """The names in the directory, unordered."""
        return os.listdir(directory)

    def open(self, path: Path, *, create: bool = False) -> io.FileIO:
        """Open a file to read and append. Raises FileNotFoundError; FileExistsError when a new file already exists."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        return Handle(os.open(path, flags, 0o644), "r+")

    def read(self, file: io.FileIO, at: int, size: int) -> bytes:
        """At most `size` bytes from offset `at`; fewer at the end of the file."""
        return os.pread(file.fileno(), size, at)

    def read_size(self, file: io.FileIO) -> int:
        """The file's length in bytes."""
        return os.fstat(file.fileno()).st_size

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        """Write at the end of the file; return how many bytes were written."""
        return os.write(file.fileno(), data)

    def overwrite(self, path: Path, at: int, data: bytes) -> None:
        """Overwrite the file's bytes from offset `at` with `data`; a `sync` of any handle to the file covers it."""
        handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # a handle opened for appending can only write at the end
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(handle, view, at)
                view, at = view[written:], at + written
        finally:
            os.close(handle)

    def truncate(self, file: io.FileIO, size: int) -> None:
        """Cut the file to `size` bytes."""
        os.ftruncate(file.fileno(), size)

    def sync(self, file: io.FileIO) -> None:
        """Make the file's content durable."""
        os.fdatasync(file.fileno())

    def remove(self, path: Path) -> None:
        """Remove the file; open handles can still read it."""
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        """Make the names in `directory` durable; otherwise a power failure may remove a file just created."""
        sync_folder(directory)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a small file durably: after a crash, either the old or the new content is there."""
        replace_file(path, [data])

    def read_small(self, path: Path) -> bytes | None:
        """The content of a small file; None when it does not exist."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
