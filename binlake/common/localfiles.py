"""Files on a local disk: replaced so that they survive a power cut, locked, measured; and their errors in words.

A replaced file is written to a temporary one, fsynced and renamed, and its folder is fsynced. A lock is released
whenever and however its holder's process ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from binlake.errors import BinlakeError


def replace_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace the file by `chunks` atomically: a crash leaves the old or the new content. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync `folder`, so that the names of its files survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


@dataclass(frozen=True)
class DiskUse:
    """Bytes: `stored` in a folder, `free` on its disk, of `size` in all."""

    stored: int = 0
    free: int = 0
    size: int = 0


NOT_KNOWN = DiskUse()


def measure_disk(folder: Path) -> DiskUse:
    """The use of the disk of `folder`, and of it by the files below. Raises OSError if `folder` cannot be read."""
    disk = shutil.disk_usage(folder)
    return DiskUse(_measure_files(folder), disk.free, disk.total)


def _measure_files(folder: str | Path) -> int:
    size = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            # Files and folders are deleted while others are counted.
            with suppress(FileNotFoundError):
                is_folder = entry.is_dir(follow_symlinks=False)
                size += _measure_files(entry.path) if is_folder else entry.stat(follow_symlinks=False).st_blocks * 512
    return size


SPACE_HINT = (
    "check that the path exists, that this user may write to it, and that its disk has space; then run it again"
)


def describe_os_error(error: OSError, text: str = "") -> BinlakeError:
    """The error with its path; `text` is used where the operating system says nothing."""
    where = {"path": error.filename} if error.filename else {}
    return BinlakeError(error.strerror or text or str(error), where=where, hint=SPACE_HINT)
