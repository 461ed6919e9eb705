"""The data directory of one pump, and all disk operations on it in one class, so that tests can discard unsynced bytes.

`.lock`: locked by the running process. `.uuid`: the store's own id (hazards R-06). `.node`, `.cluster`: node id and
cluster id (hazards R-09). `.lost`: commits given up.

No other module of the storage touches a file of the data directory, except LevelDB (its own files) and the lock. A
handle is only ever passed to the `Files` that opened it.
"""

from __future__ import annotations

import io
import os
import threading
import time
import uuid
from pathlib import Path
from typing import Protocol

from binlake.common.localfiles import FileLock, replace_file, sync_folder
from binlake.errors import Permanent


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


class TimedFiles(Files):
    """Measures a batch, its write and its sync, in seconds (tidb-binlog 2.14).

    A batch is everything appended between two syncs. Only one thread at a time may write, as in the value log.
    """

    def __init__(self, on_synced: OnSynced) -> None:
        self._on_synced = on_synced
        self._began = 0.0
        self._bytes = 0

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        """Write at the end; return how many bytes were written."""
        self._began = self._began or time.perf_counter()
        written = super().append(file, data)
        self._bytes += written
        return written

    def sync(self, file: io.FileIO) -> None:
        """Make the file's content durable."""
        before = time.perf_counter()
        super().sync(file)
        now = time.perf_counter()
        self._on_synced(fsync_s=now - before, to_disk_s=now - (self._began or before), size=self._bytes)
        self._began, self._bytes = 0.0, 0


class OnSynced(Protocol):
    """Receives the measures of each sync (`PumpMetrics.count_sync`)."""

    def __call__(self, *, fsync_s: float, to_disk_s: float, size: int) -> None:
        """The sync took `fsync_s`, the batch from its first write on `to_disk_s`; `size`: its bytes."""


class Handle(io.FileIO):
    """A file that closes itself when its last reader drops the handle, even long after the file was removed."""

    def __del__(self) -> None:
        self.close()


class DataDirectory:
    """The directory with its lock and its small files. Raises Permanent when another process holds the lock."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._files.build_directory(path)
        self._lock = FileLock(path / ".lock")
        if not self._lock.take():
            raise Permanent(
                "another process holds the data directory", where={"data_dir": path}, hint="run one pump per directory"
            )
        self.store_uuid = self.remember("uuid", str(uuid.uuid4()))

    def recall(self, name: str) -> str:
        """The content of the small file `.name`; empty when it does not exist."""
        return (self._files.read_small(self.path / f".{name}") or b"").decode().strip()

    def remember(self, name: str, value: str) -> str:
        """Return the content of `.name`; if the file does not exist, first create it durably with `value`."""
        known = self.recall(name)
        if known:
            return known
        self.replace(name, value)
        return value

    def replace(self, name: str, value: str) -> None:
        """Write `.name` durably, replacing its old content."""
        self._files.replace(self.path / f".{name}", value.encode())

    def measure_available_bytes(self) -> int:
        """Free bytes of the file system that are available to an ordinary user."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        """Unlock the directory for another process; idempotent."""
        self._lock.release()


class LostCommits:
    """Commits given up by command: a C whose P is not in this pump can never be completed, and would end every pull.

    `.lost` has each commit_ts with its start_ts: neither a restart nor a lost index undoes the decision. Thread-safe.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        words = map(int, directory.recall("lost").split())
        self._starts = dict(zip(words, words, strict=True))

    def add(self, start_ts: int, commit_ts: int) -> None:
        """Give the transaction up; durable on return. Raises OSError."""
        with self._lock:
            known = {**self._starts, commit_ts: start_ts}
            self._directory.replace("lost", "\n".join(f"{commit} {start}" for commit, start in known.items()))
            self._starts = known

    def commit_ts(self) -> list[int]:
        """All given-up commit_ts, ascending."""
        return sorted(self._starts)

    def __contains__(self, commit_ts: object) -> bool:
        return commit_ts in self._starts
