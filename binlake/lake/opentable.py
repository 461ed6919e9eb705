"""The Delta tables that this process has opened: the log is replayed once, then only newer commits are read.

The cost of opening a table grows with its files and with the commits after its last checkpoint. Asking delta-rs for
newer commits takes milliseconds even if there are none, and a small window did so sixty times. So only the next log
file is looked for. In an object store `storetable` does that.

delta-rs takes a log file of 0 bytes, as a power cut leaves it, for a commit without changes. Here it is an error.

Data is read as an Arrow dataset without Python code in Arrow's threads. delta-rs gives Arrow a file system written in
Python. Arrow still closes files in its threads when the interpreter exits, and a thread that then requests the
interpreter's lock aborts the process (measured: 9 of 12 short programs, after they had done their work). Arrow's own
file systems do the same without Python.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from binlake.errors import LostRange
from binlake.lake.access import is_remote
from binlake.lake.lease import require_leases
from binlake.lake.objects import has_object
from binlake.lake.store import build_delta_options, delete_folder, open_files
from binlake.lake.storetable import StoreTable, name_commit

_MOST_TABLES = 256
"""The number of cached tables, the last used ones: a process may use many lakes."""
_FRESH_NS = 3_600_000_000_000
"""A commit younger than this (an hour) will not be removed from the log soon, nor will later ones."""

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
    """`commit`: the newest one that was read."""

    table: DeltaTable
    commit: _Commit


KnownTable: TypeAlias = DeltaTable | StoreTable
"""A table at its newest version: in an object store, without asking delta-rs for it."""

_lock = threading.Lock()
_tables: dict[str, _CachedTable] = {}
_stored: dict[str, StoreTable] = {}
_T = TypeVar("_T")


def open_table(path: str) -> DeltaTable:
    """The table at `path` at its newest version. For repeated reads make one dataset. Raises TableNotFoundError."""
    if not is_remote(path):
        return open_known(path)
    stored = _find_stored(path)
    if stored.version() >= 0:
        stored.look()
    return stored.open_fully()


def open_known(path: str) -> KnownTable:
    """As `open_table`, for a caller that needs what a StoreTable has: fewer requests in an object store."""
    if is_remote(path):
        stored = _find_stored(path)
        stored.look()
        return stored
    with _lock:
        cached = _tables.get(path)
    table = None if cached is None else _update_cached(path, cached)
    if table is None:
        table = load_table(path)
    commit = _find_commit(path, table.version())
    if commit is not None:
        _keep(_tables, path, _CachedTable(table, commit))
    return table


def open_fully(table: KnownTable) -> DeltaTable:
    """`table` for what delta-rs does with its data."""
    return table.open_fully() if isinstance(table, StoreTable) else table


def open_files_of(table: KnownTable) -> DeltaTable:
    """`table` for questions about its files; in an object store their data is not there."""
    return table.files() if isinstance(table, StoreTable) else table


def _find_stored(path: str) -> StoreTable:
    """The one of this process; it may not exist in the store."""
    with _lock:
        stored = _stored.get(path)
    if stored is None:
        stored = StoreTable(path, load_table)
        with _lock:
            stored = _stored.setdefault(path, stored)
    _keep(_stored, path, stored)
    return stored


def open_once(path: str) -> KnownTable:
    """The table at `path` at its newest version, for a read that this process may not repeat. Raises as `open_table`.

    On a disk it is not cached: its log is read quickly, and the list of a large table's files takes memory.
    """
    return open_known(path) if is_remote(path) else load_table(path)


def open_version(path: str, version: int) -> KnownTable:
    """The table at `path` at `version`, to be read. In a store it is often the newest. Raises as `load_table`."""
    if is_remote(path) and (known := open_known(path)).version() == version:
        return known
    return load_table(path, version=version)


def list_file_uris(path: str, predicate: str) -> list[str]:
    """The URIs of the files with rows that may match the SQL text `predicate`, URL-encoded; on a disk their paths."""
    known = open_known(path)
    uris = open_files_of(known).file_uris(file_pruning_predicate=predicate)
    if isinstance(known, StoreTable):
        root = known.files().table_uri.rstrip("/").removeprefix("file://")
        return [f"{path}/{uri.removeprefix('file://').removeprefix(f'{root}/')}" for uri in uris]
    return [uri.removeprefix("file://") for uri in uris]


def _keep(tables: dict[str, _T], path: str, table: _T) -> None:
    with _lock:
        tables.pop(path, None)  # the last used one is at the end
        tables[path] = table
        if len(tables) > _MOST_TABLES:
            del tables[next(iter(tables))]


def is_newest(path: str, table: KnownTable, version: int) -> bool:
    """True when `open_known` returned `table` and no commit followed `version`; this reads no log."""
    if isinstance(table, StoreTable):
        if _find_stored(path) is not table:
            return False
        table.look()
        return table.version() == version
    with _lock:
        cached = _tables.get(path)
    if cached is None or cached.table is not table or table.version() != version:
        return False
    return _find_commit(path, cached.commit.version) == cached.commit and not _may_have_newer(path, cached)


def is_last_version(path: str, version: int) -> bool:
    """Whether `version` is surely the newest one of the table at `path`, asked without opening it: two requests.

    False also if that cannot be seen so: on a disk, and of a table that this process has opened.
    """
    if not is_remote(path) or _find_stored(path).version() >= 0:
        return False
    return has_object(path, name_commit(version)) and not has_object(path, name_commit(version + 1))


def count_others(path: str) -> int:
    """How many commits of others this process has found in the table at `path`, which is in an object store."""
    return _find_stored(path).others


def is_table(path: str) -> bool:
    """Whether there is a table at `path`."""
    if not is_remote(path):
        return bool(DeltaTable.is_deltatable(path))
    stored = _find_stored(path)
    if stored.version() >= 0:
        return True
    # delta-rs keeps Python's lock while it asks a store for this, so that no other thread could renew a lease.
    try:
        stored.look()
    except TableNotFoundError:
        return False
    return True


def delete_table(path: str) -> None:
    """Delete the table at `path` with all its files, if it exists. Raises OSError."""
    with _lock:
        _tables.pop(path, None)
        _stored.pop(path, None)
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
    before = cached.commit.version
    if _find_commit(path, before) != cached.commit:
        return None
    if _may_have_newer(path, cached):
        cached.table.update_incremental()
        _require_contents(path, before + 1, cached.table.version())
    return cached.table


def _may_have_newer(path: str, cached: _CachedTable) -> bool:
    # While a log is cleaned up, the next commit may already be removed when an older one still exists.
    is_old = time.time_ns() - cached.commit.written_ns > _FRESH_NS
    return is_old or _commit_file(path, cached.table.version() + 1).exists()


def _find_commit(path: str, version: int) -> _Commit | None:
    """The commit of `version`; None if it was removed from the log or the lake is not on a local disk."""
    try:
        status = _commit_file(path, version).stat()
    except OSError:
        return None
    return _Commit(version, status.st_ino, status.st_mtime_ns)


def _commit_file(path: str, version: int) -> Path:
    return Path(path) / "_delta_log" / f"{version:020}.json"


FEW_REQUESTS = ds.ParquetFragmentScanOptions(
    pre_buffer=True, cache_options=pa.CacheOptions(hole_size_limit=256 << 10, range_size_limit=16 << 20, lazy=True)
)
"""Reads columns of a file in a store that are close to each other in one request: what lies between them takes 5 ms."""


def open_dataset(table: KnownTable, repeated: Iterable[str] = ()) -> ds.Dataset:
    """The files of `table` at its opened version. Columns in `repeated` are read as dictionaries."""
    options, files = ds.ParquetReadOptions(dictionary_columns=set(repeated)), open_table_files(table)
    found = open_files_of(table).to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    return _describe_stored(found, table, files, options) if isinstance(table, StoreTable) else found


def _describe_stored(
    data: ds.FileSystemDataset, table: StoreTable, files: fs.FileSystem, options: ds.ParquetReadOptions
) -> ds.FileSystemDataset:
    """`data` with the sizes that the log has, so that the store is not asked for each; columns that are close to each
    other come in one request."""
    form = ds.ParquetFileFormat(read_options=options, default_fragment_scan_options=FEW_REQUESTS)
    adds = table.get_add_actions()
    sizes = dict(zip(map(unquote, adds["path"].to_pylist()), adds["size_bytes"].to_pylist(), strict=True))
    named = [
        form.make_fragment(one.path, files, one.partition_expression, file_size=sizes.get(one.path))
        for one in data.get_fragments()
    ]
    return ds.FileSystemDataset(named, data.schema, form, files)


def open_table_files(table: KnownTable) -> fs.FileSystem:
    """A file system rooted at the folder of `table`, for the paths of its files."""
    place = table.table_uri.rstrip("/")
    if place.startswith("file://"):
        place = fs.FileSystem.from_uri(place)[1]
    files, root = open_files(place)
    return fs.SubTreeFileSystem(root, files)
