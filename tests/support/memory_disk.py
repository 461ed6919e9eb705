"""Where short-lived servers and databases of tests keep their files: in memory, for a test waits for no disk's syncs.

What is killed finds all there again; a machine that loses power is no test's business.
"""

from __future__ import annotations

import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")


def memory_disk(needed: int) -> Path | None:
    """The memory disk if `needed` bytes are free there; None means the usual folder of temporary files."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > needed
    return _MEMORY if roomy else None
