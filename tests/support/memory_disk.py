"""Keep the files of short-lived test servers and databases in memory, so that no test waits for disk syncs.

The files survive a killed process; no test covers a machine that loses power.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

_MEMORY = Path("/dev/shm")
# Pumps as they are deployed write nothing if less than 10 GiB are free.
_ENOUGH_FOR_ALL = 16 << 30
# A run holds less than 1 GB, and takes a multiple of that for its servers.
_ENOUGH_MEMORY = 8 << 30


def memory_disk(needed: int) -> Path | None:
    """The memory disk if it has `needed` free bytes, else None, which means the usual folder of temporary files."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > needed
    return _MEMORY if roomy else None


def keep_temporary_files_in_memory() -> None:
    """Let this process and its programs have their temporary files, and pytest its folders, on the memory disk.

    Not if there is little room, or the environment names a folder. Pumps, etcd and Airflow sync files thousands of
    times, 2 to 7 ms each on a disk.
    """
    if "TMPDIR" in os.environ or psutil.virtual_memory().available < _ENOUGH_MEMORY:
        return
    if memory := memory_disk(_ENOUGH_FOR_ALL):
        os.environ["TMPDIR"] = str(memory)
        tempfile.tempdir = None  # asked for again
