"""The data directory of one pump: one process locks it, and small files in it record to whom it belongs.

`.lock`: locked by the running process. `.uuid`: the store's own id (hazards R-06). `.node`, `.cluster`: node id and
cluster id (hazards R-09).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from binlake.base.localfiles import FileLock
from binlake.errors import Permanent
from binlake.pump_service.pump.files import Files


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
