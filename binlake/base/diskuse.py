"""How full a disk is, and what a folder takes of it."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


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
