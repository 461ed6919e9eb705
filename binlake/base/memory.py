"""Where Arrow gets its memory: from the C library's allocator, in Binlake's own programs.

Arrow's own default (mimalloc) gives pages back soon and takes them again for the next batch. For the work of a window
the kernel then needs 0.70 s of CPU instead of 0.18, of 2.6 s in all (bench/README.md), and the process a tenth more
memory.
"""

from __future__ import annotations

import os

_POOL = "ARROW_DEFAULT_MEMORY_POOL"


def use_system_memory() -> None:
    """Let Arrow, if it is loaded later, and programs that this one starts use the C library's allocator.

    A pool that the environment names is kept.
    """
    os.environ.setdefault(_POOL, "system")
