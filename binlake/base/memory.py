"""Where Arrow gets its memory, in Binlake's own programs: from the C library's allocator, which gives free pages back.

Arrow's own default (mimalloc) gives pages back soon and takes them again for the next batch. For the work of a window
the kernel then needs 0.70 s of CPU instead of 0.18, of 2.6 s in all (bench/README.md), and the process a tenth more
memory. But the C library keeps freed pages, apart for each group of threads: after a million rows a process held 1.1
GiB of them. So a stage gives them back when it ends, if there are many or the process is large: it takes 0.3 us of CPU
a row, and to take them again as much.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import Any

_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
"""Options of mallopt."""
_OPTIONS = {
    # What a thread frees, others can only take in the same arena. Most of a window's work waits for Python's lock.
    _ARENA_MAX: ("MALLOC_ARENA_MAX", 2),
    # The columns of a piece go back at once. For smaller blocks the kernel would clear pages all the time.
    _MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", 8 << 20),
    # `give_memory_back` does it when it pays.
    _TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", 64 << 20),
}
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_DELTA_RS = ("_RJEM_MALLOC_CONF", "narenas:2,dirty_decay_ms:100,muzzy_decay_ms:0")
"""delta-rs has an allocator of its own, jemalloc, which keeps free pages for ten seconds."""
_FREE_BYTES = 32 << 20
"""Free pages that stay: to give fewer back is not worth the call."""
_MOST_FREE_BYTES, _LARGE_BYTES = 128 << 20, 400 << 20
"""As many stay in a process that is not large: what is given back is soon taken again, and the kernel clears it."""


def use_system_memory() -> None:
    """Let Arrow, if it is loaded later, and programs that this one starts use the C library's allocator.

    A pool that the environment names is kept.
    """
    os.environ.setdefault(_POOL, "system")


def share_arenas() -> None:
    """Let all threads take memory from few places, which keep little of it; to be called before there are many threads,
    and before delta-rs is loaded.

    An option that the environment names is kept. Does nothing with a C library other than GNU's.
    """
    os.environ.setdefault(*_DELTA_RS)
    if (set_option := _find_function("mallopt")) is not None:
        for option, (name, value) in _OPTIONS.items():
            if name not in os.environ:
                set_option(option, value)


def give_memory_back() -> None:
    """Give free pages back to the system if there are many; does nothing with a C library other than GNU's."""
    measure, trim = _find_function("mallinfo2"), _find_function("malloc_trim")
    if measure is None or trim is None:
        return
    measure.restype = _Used  # type: ignore[attr-defined]
    free = measure().free_bytes
    if free >= _MOST_FREE_BYTES or (free >= _FREE_BYTES and _read_resident_bytes() >= _LARGE_BYTES):
        trim(0)


def _read_resident_bytes() -> int:
    """The bytes of this process that are in memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


class _Used(ctypes.Structure):
    """`struct mallinfo2`, ten numbers; `free_bytes` (fordblks) is the ninth."""

    _fields_ = (("_before", ctypes.c_size_t * 8), ("free_bytes", ctypes.c_size_t), ("_after", ctypes.c_size_t))


@cache
def _find_function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)
