"""Ensures one writing process per lake: local log stores exclude writers only within a process (hazards R-41).

A lake on a local disk is locked by flock, which the kernel releases when the holder ends, for whatever reason.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from binlake.errors import ConfigError, LeaseHeld
from binlake.lake.paths import LakePaths


@contextmanager
def hold_lake_lock(paths: LakePaths, name: str, *, wait_s: float = 60.0) -> Iterator[None]:
    """Hold the lock `name` of the lake (one per table group: `landing`, `merge`, `sql`, `mirror`).

    Waits up to `wait_s` seconds, then raises LeaseHeld, which names the holder.
    """
    root = paths.local
    if root is None:
        raise ConfigError(
            "this lake is not on a local disk, so it cannot be locked",
            where={"lake": paths.root},
            hint="only local lakes are supported for now; see docs/understand/decisions.md",
        )
    folder = root / "_locks"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _acquire(handle, folder / f"{name}.lock", wait_s)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"pid {os.getpid()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def lock_holder(paths: LakePaths, names: Sequence[str]) -> str:
    """The present holder of one of the locks `names`, or "". Takes no lock: for processes that wait."""
    folder = paths.local / "_locks" if paths.local is not None else None
    for path in [folder / f"{name}.lock" for name in names] if folder is not None else []:
        if path.exists() and not _is_free(path):
            return f"{path.stem}: {path.read_text(encoding='utf-8') or 'an unknown process'}"
    return ""


def _is_free(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY)
    try:
        # Use a shared lock, so that two observers do not see each other.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _acquire(handle: int, path: Path, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = path.read_text(encoding="utf-8") or "an unknown process"
                raise LeaseHeld(
                    f"the lake is being written by {holder}",
                    where={"lock": path},
                    hint="wait for that process, or end it, which releases the lock",
                ) from None
            time.sleep(0.1)
        else:
            return
