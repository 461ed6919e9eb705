"""Keep the files of short-lived test servers and databases in memory, so that no test waits for disk syncs.

The files survive a killed process; no test covers a machine that loses power.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")


def memory_disk(needed: int) -> Path | None:
    """The memory disk if it has `needed` free bytes, else None, which means the usual folder of temporary files."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > needed
    return _MEMORY if roomy else None
