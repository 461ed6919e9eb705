"""Identifies the process of a pid by facts that never change; psutil's create_time depends on the wall clock.

The kernel records how many ticks after boot a process began; each boot of a machine has another boot id.
"""

from __future__ import annotations

import functools
import zlib
from pathlib import Path

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
