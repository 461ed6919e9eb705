"""A process as the machine sees it: its memory, its CPU, its clock, and what identifies it.

Memory: Arrow takes it from the C library's allocator. Arrow's own default (mimalloc) gives pages back soon and takes
them again for the next batch. For the work of a window the kernel then needs 0.70 s of CPU instead of 0.18, of 2.6 s in
all (bench/README.md), and the process a tenth more memory. But the C library keeps freed pages, apart for each group of
threads: after a million rows a process held 1.1 GiB of them. So a stage gives them back when it ends, if there are many
or the process is large: it takes 0.3 us of CPU a row, and to take them again as much.

CPU: threads of Arrow and delta-rs work for every stage and say for which one nowhere. So between two moments at which a
share begins or ends, all open shares get equal parts: their sum is exact, and so is a share that runs alone.

Clock: it measures how long ago something was; nobody sets it, and it goes on while the machine sleeps.

Identity: the kernel records how many ticks after boot a process began, and each boot of a machine has another boot id.
These facts never change; psutil's create_time depends on the wall clock.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
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


def read_cpu_s() -> float:
    """The CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class CpuShare:
    """One share of a meter. For one thread, except that the meter counts in it."""

    def __init__(self, meter: CpuMeter) -> None:
        self._meter = meter
        self.divided_s = 0.0
        self._more_s = 0.0
        self._taken_s = 0.0

    def take_s(self) -> float:
        """The CPU seconds of this share since the last call."""
        self._meter.divide()
        before, self._taken_s = self._taken_s, self.divided_s + self._more_s
        return self._taken_s - before

    def add(self, seconds: float) -> None:
        """Count CPU seconds that another process spent for this share."""
        self._more_s += seconds


class CpuMeter:
    """Divides what the clock `read_s` (CPU seconds) counts among the shares that are open."""

    def __init__(self, read_s: Callable[[], float] = read_cpu_s) -> None:
        self._read_s = read_s
        self._lock = threading.Lock()
        self._open: list[CpuShare] = []
        self._divided_s = 0.0

    @contextmanager
    def begin(self) -> Iterator[CpuShare]:
        """A share that ends with the block."""
        share = CpuShare(self)
        self.divide()
        with self._lock:
            self._open.append(share)
        try:
            yield share
        finally:
            self.divide()
            with self._lock:
                self._open.remove(share)

    def divide(self) -> None:
        """Divide what was spent since the last time."""
        with self._lock:
            now = self._read_s()
            for share in self._open:
                share.divided_s += (now - self._divided_s) / len(self._open)
            self._divided_s = now


CPU = CpuMeter()
"""The meter of this process."""


def read_clock_s() -> float:
    """Seconds since the machine started; to be compared only with other readings on it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


_PROC = Path("/proc")
_STATE, _STARTTIME = 0, 19  # index among the fields after the command (proc(5), stat)


def start_of(pid: int) -> int | None:
    """A number that no other process with this pid had or will have; None if the process has ended."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    # A zombie has ended.
    return None if fields[_STATE] in "ZX" else int(f"{fields[_STARTTIME]}{_read_boot_id():010d}")


@functools.cache
def _read_boot_id() -> int:
    return zlib.crc32((_PROC / "sys/kernel/random/boot_id").read_bytes())
