"""A lock on a file that ends with its holder, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


class FileLock:
    """The lock on `path`, which is created if need be. Not re-entrant: each object is a holder of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def take(self, holder: str = "") -> bool:
        """False when another holder has it. `holder`: what `read_holder` tells others. Raises OSError."""
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
        """What the last holder said of itself. Raises OSError."""
        return self._path.read_text(encoding="utf-8", errors="replace")

    def release(self) -> None:
        """Free it; idempotent: the handle's number may be reused by then."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
