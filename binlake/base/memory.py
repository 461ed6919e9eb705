"""Where Arrow gets its memory, in Binlake's own programs: from the C library's allocator, which gives free pages back.

Arrow's own default (mimalloc) gives pages back soon and takes them again for the next batch. For the work of a window
the kernel then needs 0.70 s of CPU instead of 0.18, of 2.6 s in all (bench/README.md), and the process a tenth more
memory. But the C library keeps freed pages, apart for each group of threads: after a million rows a process held 1.1
GiB of them. So a stage gives them back when it ends, which takes 0.3 us of CPU a row.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_ARENA_MAX, _ARENAS = -8, 2
"""mallopt's M_ARENA_MAX, and its value: what a thread frees, others can only take in the same arena. Most of a window's
work waits for Python's lock anyway."""
_FREE_BYTES = 32 << 20
"""Free pages that stay: to give fewer back is not worth the call."""


def use_system_memory() -> None:
    """Let Arrow, if it is loaded later, and programs that this one starts use the C library's allocator.

    A pool that the environment names is kept.
    """
    os.environ.setdefault(_POOL, "system")


def share_arenas() -> None:
    """Let all threads take memory from few places; to be called before there are many threads.

    Does nothing with a C library other than GNU's, or if MALLOC_ARENA_MAX is set.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and (set_option := _find_function("mallopt")) is not None:
        set_option(_ARENA_MAX, _ARENAS)


def give_memory_back() -> None:
    """Give free pages back to the system if there are many; does nothing with a C library other than GNU's."""
    measure, trim = _find_function("mallinfo2"), _find_function("malloc_trim")
    if measure is None or trim is None:
        return
    measure.restype = _Used  # type: ignore[attr-defined]
    if measure().free_bytes >= _FREE_BYTES:
        trim(0)


class _Used(ctypes.Structure):
    """`struct mallinfo2`, ten numbers; `free_bytes` (fordblks) is the ninth."""

    _fields_ = (("_before", ctypes.c_size_t * 8), ("free_bytes", ctypes.c_size_t), ("_after", ctypes.c_size_t))


@cache
def _find_function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)
