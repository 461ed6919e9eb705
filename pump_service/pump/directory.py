"""The data directory of one pump: one process holds it, and its small files say to whom it belongs.

`.lock`: the process that holds it. `.uuid`: the store's own id (hazards R-06). `.node`, `.cluster`: node id and cluster
id (hazards R-09).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from binlake.base.filelock import FileLock
from binlake.errors import Permanent
from pump_service.pump.files import Files


class DataDirectory:
    """The directory with its lock and its small files. Raises Permanent when another process holds it."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self._files = files or Files()
        self._files.make_directory(path)
        self._lock = FileLock(path / ".lock")
        if not self._lock.take():
            raise Permanent(
                "another process holds the data directory", where={"data_dir": path}, hint="run one pump per directory"
            )
        self.store_uuid = self.remember("uuid", str(uuid.uuid4()))

    def recall(self, name: str) -> str:
        """The content of the small file `.name`; empty when there is none."""
        return (self._files.read_small(self.path / f".{name}") or b"").decode().strip()

    def remember(self, name: str, value: str) -> str:
        """The content of `.name`, written durably with `value` when there is none yet: the first value stays."""
        known = self.recall(name)
        if known:
            return known
        self.replace(name, value)
        return value

    def replace(self, name: str, value: str) -> None:
        """Write `.name` durably, replacing what it held."""
        self._files.replace(self.path / f".{name}", value.encode())

    def available_bytes(self) -> int:
        """Bytes of the file system that an ordinary user may still take."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        """Free the directory for another process; idempotent."""
        self._lock.release()
