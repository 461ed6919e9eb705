"""A lock on a file, which is released whenever and however its holder's process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FileLock:
    """The lock on `path`, which is created if missing. Not re-entrant: each object is a separate holder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def take(self, holder: str = "") -> bool:
        """Try to take the lock; False if another holder has it. `read_holder` returns `holder`. Raises OSError."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if holder:
                os.ftruncate(handle, 0)
                os.pwrite(handle, holder.encode(), 0)
        except BlockingIOError:
            os.close(handle)
            return False
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        return True

    def read_holder(self) -> str:
        """The text that the last holder passed to `take`. Raises OSError."""
        return self._path.read_text(encoding="utf-8", errors="replace")

    def release(self) -> None:
        """Release the lock. Idempotent: a second close could close a file that has reused the handle's number."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
