"""Caches the Delta tables that this process has opened: the log is replayed once, then only newer commits are read.

The cost of opening a table grows with its files and with the commits after its last checkpoint. Asking delta-rs for
newer commits takes milliseconds even if there are none, two requests in an object store, and a small window did so
sixty times. So only the next log file is looked for.

delta-rs takes a log file of 0 bytes, as a power cut leaves it, for a commit without changes. Here it is an error.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from binlake.base.clock import read_clock_s
from binlake.errors import LostRange
from binlake.lake.access import is_remote
from binlake.lake.lease import require_leases
from binlake.lake.objects import has_object
from binlake.lake.store import build_delta_options, delete_folder

_MOST_TABLES = 256
"""The number of cached tables, the last used ones: a process may use many lakes."""
_FRESH_NS = 3_600_000_000_000
"""A commit younger than this (an hour) will not be removed from the log soon, nor will later ones."""
_FRESH_S = _FRESH_NS / 1e9

_REPLAYED = 200
"""Commits before a version that may not be in a checkpoint yet (Delta's default interval is 100)."""


@dataclass(frozen=True)
class _Commit:
    """A commit and its log file. While this file exists, all later ones exist too."""

    version: int
    inode: int
    written_ns: int


@dataclass(frozen=True)
class _CachedTable:
    """`commit`: the newest one that was read; None in an object store, where a commit after the table's version is
    younger than `looked_s`."""

    table: DeltaTable
    commit: _Commit | None
    looked_s: float


_lock = threading.Lock()
_tables: dict[str, _CachedTable] = {}


def open_table(path: str) -> DeltaTable:
    """The table at `path` at its newest version. For repeated reads make one dataset. Raises TableNotFoundError."""
    with _lock:
        cached = _tables.get(path)
    looked_s = read_clock_s()
    table = None if cached is None else _update_cached(path, cached)
    if table is None:
        table = load_table(path)
    if is_remote(path):
        require_leases()
    _keep(path, table, looked_s)
    return table


def open_once(path: str) -> DeltaTable:
    """The table at `path` at its newest version, for a read that this process may not repeat. Raises as `open_table`.

    On a disk it is not cached: its log is read quickly, and the list of a large table's files takes memory. In a store
    the log takes two requests for each commit since the last checkpoint.
    """
    return open_table(path) if is_remote(path) else load_table(path)


def _keep(path: str, table: DeltaTable, looked_s: float) -> None:
    commit = _find_commit(path, table.version())
    if commit is not None or is_remote(path):
        with _lock:
            _tables.pop(path, None)  # the last used one is at the end
            _tables[path] = _CachedTable(table, commit, looked_s)
            if len(_tables) > _MOST_TABLES:
                del _tables[next(iter(_tables))]


def is_newest(path: str, table: DeltaTable, version: int) -> bool:
    """True when `open_table` returned `table` and no commit followed `version`; this reads no log."""
    with _lock:
        cached = _tables.get(path)
    if cached is None or cached.table is not table or table.version() != version:
        return False
    looked_s = read_clock_s()
    if is_remote(path):
        if _may_have_newer(path, cached):
            return False
        _keep(path, table, looked_s)
        return True
    is_there = cached.commit is not None and _find_commit(path, cached.commit.version) == cached.commit
    return is_there and not _may_have_newer(path, cached)


def is_table(path: str) -> bool:
    """Whether there is a table at `path`."""
    if not is_remote(path):
        return bool(DeltaTable.is_deltatable(path))
    with _lock:
        if path in _tables:
            return True
    # delta-rs keeps Python's lock while it asks a store for this, so that no other thread could renew a lease.
    try:
        open_table(path)
    except TableNotFoundError:
        return False
    return True


def delete_table(path: str) -> None:
    """Delete the table at `path` with all its files, if it exists. Raises OSError."""
    with _lock:
        _tables.pop(path, None)
    delete_folder(path)


def load_table(path: str, version: int | None = None) -> DeltaTable:
    """The table at `path` (at `version`, if given), not from the cache. Raises LostRange, TableNotFoundError."""
    try:
        table = DeltaTable(path, version=version, storage_options=build_delta_options(path))
    except DeltaError:
        # The table's first commit is empty: delta-rs then finds no definition.
        _require_contents(path, 0, _REPLAYED)
        raise
    _require_contents(path, max(table.version() - _REPLAYED, 0), table.version())
    if is_remote(path):
        require_leases()
    return table


def _require_contents(path: str, first: int, last: int) -> None:
    """Require that no commit from `first` to `last` is empty; older ones are in a checkpoint. Raises LostRange.

    An object store has whole objects only.
    """
    if is_remote(path):
        return
    for version in range(first, last + 1):
        file = _commit_file(path, version)
        try:
            size = file.stat().st_size
        except OSError:
            continue  # removed with the old part of the log
        if size == 0:
            raise LostRange(
                f"a file of the log of the lake's table `{file.parent.parent.name}` is empty, as after a power cut",
                where={"file": str(file)},
                hint="restore it from a copy; if there is none and it is the newest of its folder, delete it: the next"
                " run names the window that was lost with it",
            )


def _update_cached(path: str, cached: _CachedTable) -> DeltaTable | None:
    """The cached table at its newest version; None if another table replaced it, or its log was truncated."""
    before = cached.table.version()
    if cached.commit is not None:
        before = cached.commit.version
        if _find_commit(path, before) != cached.commit:
            return None
    if _may_have_newer(path, cached):
        cached.table.update_incremental()
        _require_contents(path, before + 1, cached.table.version())
    return cached.table


def _may_have_newer(path: str, cached: _CachedTable) -> bool:
    # While a log is cleaned up, the next commit may already be removed when an older one still exists.
    following = cached.table.version() + 1
    if cached.commit is None:
        return read_clock_s() - cached.looked_s > _FRESH_S or has_object(path, f"_delta_log/{following:020}.json")
    is_old = time.time_ns() - cached.commit.written_ns > _FRESH_NS
    return is_old or _commit_file(path, following).exists()


def _find_commit(path: str, version: int) -> _Commit | None:
    """The commit of `version`; None if it was removed from the log or the lake is not on a local disk."""
    try:
        status = _commit_file(path, version).stat()
    except OSError:
        return None
    return _Commit(version, status.st_ino, status.st_mtime_ns)


def _commit_file(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020}.json"
