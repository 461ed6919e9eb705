"""Small files that survive a power cut: written to a temporary file, fsynced, renamed, and the folder fsynced."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


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
