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

    def take(self) -> bool:
        """False when another holder has it. Raises OSError when the file cannot be opened."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    def release(self) -> None:
        """Free it; idempotent: the handle's number may be reused by then."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
