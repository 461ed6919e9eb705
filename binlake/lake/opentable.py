"""Delta tables that this process has opened: the replayed log is cached, and only newer commits are read.

Opening a table costs by its files and by the commits after its last checkpoint, and asking delta-rs for newer commits
costs milliseconds even if there are none: a small window asked sixty times. On a disk a look at the log is enough.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

_MOST_TABLES = 256
"""How many tables are cached, the last used ones: a process may see many lakes."""
_FRESH_NS = 3_600_000_000_000
"""A commit younger than this (an hour) will not leave the log soon, and nor will those after it."""


@dataclass(frozen=True)
class _Commit:
    """A commit and its file: while this file exists, so do all later ones."""

    version: int
    inode: int
    written_ns: int


@dataclass(frozen=True)
class _CachedTable:
    table: DeltaTable
    commit: _Commit


_lock = threading.Lock()
_tables: dict[str, _CachedTable] = {}


def open_table(path: str) -> DeltaTable:
    """The table at `path` at its newest version; to read it often, make one dataset. Raises TableNotFoundError."""
    with _lock:
        cached = _tables.pop(path, None)
    table = None if cached is None else _update_cached(path, cached)
    if table is None:
        table = DeltaTable(path)
    commit = _find_commit(path, table.version())
    if commit is not None:
        with _lock:
            _tables[path] = _CachedTable(table, commit)
            if len(_tables) > _MOST_TABLES:
                del _tables[next(iter(_tables))]
    return table


def _update_cached(path: str, cached: _CachedTable) -> DeltaTable | None:
    """The cached table at its newest version; None where another table replaced it, or its log was cut."""
    if _find_commit(path, cached.commit.version) != cached.commit:
        return None
    # A log that is being cleaned up could have lost the next commit but not yet an old one.
    is_old = time.time_ns() - cached.commit.written_ns > _FRESH_NS
    if is_old or _commit_file(path, cached.table.version() + 1).exists():
        cached.table.update_incremental()
    return cached.table


def _find_commit(path: str, version: int) -> _Commit | None:
    """None where it has left the log, or the lake is not on a disk."""
    try:
        status = _commit_file(path, version).stat()
    except OSError:
        return None
    return _Commit(version, status.st_ino, status.st_mtime_ns)


def _commit_file(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020}.json"
