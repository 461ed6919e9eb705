"""Delta tables that this process has opened: what it replayed of a log once is kept, and only newer commits are read.

Opening a table costs by its files and by the commits behind its last checkpoint; a small window asked for ten of them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

_Commit = tuple[int, int]


@dataclass(frozen=True)
class _Kept:
    table: DeltaTable
    commit: _Commit


_lock = threading.Lock()
_tables: dict[str, _Kept] = {}


def open_table(path: str) -> DeltaTable:
    """The table at `path` as it is now; to read it several times, make one dataset of it. Raises TableNotFoundError."""
    with _lock:
        kept = _tables.pop(path, None)
    if kept is not None and _commit(path, kept.table) == kept.commit:
        table = kept.table
        table.update_incremental()
    else:
        table = DeltaTable(path)
    commit = _commit(path, table)
    if commit is not None:
        with _lock:
            _tables[path] = _Kept(table, commit)
    return table


def _commit(path: str, table: DeltaTable) -> _Commit | None:
    """The file of the table's newest commit that is known here: while it is there, so are all behind it.

    None where it has left the log, or another table was made in the place, or the lake is not on a disk.
    """
    try:
        found = (Path(path) / "_delta_log" / f"{table.version():020}.json").stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
