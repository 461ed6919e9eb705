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

import functools
import operator
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from binlake.errors import LostRange
from binlake.lake.access import is_remote
from binlake.lake.lease import require_leases
from binlake.lake.objects import read_object
from binlake.lake.store import build_delta_options, delete_folder, open_files
from binlake.lake.storetable import StoreTable

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
    if is_remote(path):
        _find_stored(path).list_for_answer(version)
        if (known := open_known(path)).version() == version:
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
    """Whether `version` is surely the newest one of the table at `path`, asked without opening it: one request.

    False also if that cannot be seen so: on a disk, and of a table that this process has opened.
    """
    return is_remote(path) and _find_stored(path).is_last(version)


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


WHOLE_BYTES = 64 << 10
"""Files up to this size are got whole from a store: some hundred events."""
_MOST_AT_ONCE = 16
"""More files than this are not got whole: a read of many files needs few columns of each."""
_MOST_HELD_BYTES = 32 << 20
"""Of the files of stores that are kept in memory, the last used ones."""

_held: dict[tuple[str, str], tuple[ds.Fragment, int]] = {}


def open_dataset(table: KnownTable, repeated: Iterable[str] = ()) -> ds.Dataset:
    """The files of `table` at its opened version. Columns in `repeated` are read as dictionaries."""
    options, files = ds.ParquetReadOptions(dictionary_columns=set(repeated)), open_table_files(table)
    found = open_files_of(table).to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    return _describe_stored(found, table, files, options) if isinstance(table, StoreTable) else found


def read_matching(table: KnownTable, columns: Sequence[str], where: ds.Expression) -> pa.Table:
    """`columns` of the rows of `table` that match `where`; a few small files of a store cost one request, once."""
    data = open_dataset(table)
    if isinstance(table, StoreTable):
        parts = hold_whole(table.path, list(data.get_fragments(filter=where)), list_sizes(table.get_add_actions()))
        data = ds.FileSystemDataset(parts, data.schema, data.format, data.filesystem)
    return data.to_table(columns=list(columns), filter=where)


def hold_whole(
    path: str, files: Sequence[ds.Fragment], sizes: Mapping[str, int], most_bytes: int = WHOLE_BYTES
) -> list[ds.Fragment]:
    """`files` of the table at `path` in a store, those of up to `most_bytes` as files in memory.

    Each costs one request, instead of one for its footer and one for each read; none if this process has got it before
    (a file of a Delta table never changes). If they are many, they stay as they are. `sizes`: their bytes by path below
    the table's folder. Raises FileNotFoundError, BinlakeError.
    """
    small = [one for one in files if sizes[one.path] <= most_bytes]
    if len(small) > _MOST_AT_ONCE:
        return list(files)
    with _lock:
        held = {one.path: _held.pop((path, one.path), None) for one in small}
    new = [one for one in small if held[one.path] is None]
    if new:
        with ThreadPoolExecutor(len(new)) as pool:
            got = pool.map(lambda one: read_object(path, one.path), new)
            for one, content in zip(new, got, strict=True):
                known = one.format.make_fragment(pa.py_buffer(content), partition_expression=one.partition_expression)
                held[one.path] = known, len(content)
    whole = {name: one for name, one in held.items() if one is not None}
    with _lock:
        _held.update({(path, name): one for name, one in whole.items()})
        while sum(size for _, size in _held.values()) > _MOST_HELD_BYTES:
            del _held[next(iter(_held))]
    return [whole[one.path][0] if one.path in whole else one for one in files]


def list_sizes(adds: pa.Table) -> dict[str, int]:
    """The bytes of each file of a table, by path below its folder; `adds`: the files as delta-rs describes them."""
    return dict(zip(map(unquote, adds["path"].to_pylist()), adds["size_bytes"].to_pylist(), strict=True))


def _describe_stored(
    data: ds.FileSystemDataset, table: StoreTable, files: fs.FileSystem, options: ds.ParquetReadOptions
) -> ds.FileSystemDataset:
    """`data` with the sizes that the log has, so that the store is not asked for each; columns that are close to each
    other come in one request."""
    form = ds.ParquetFileFormat(read_options=options, default_fragment_scan_options=FEW_REQUESTS)
    adds = table.get_add_actions()
    sizes, known = list_sizes(adds), _describe_incomplete(adds, data.schema.names)
    named = [
        form.make_fragment(
            one.path, files, known.get(one.path, one.partition_expression), file_size=sizes.get(one.path)
        )
        for one in data.get_fragments()
    ]
    return ds.FileSystemDataset(named, data.schema, form, files)


def _describe_incomplete(adds: pa.Table, columns: Sequence[str]) -> dict[str, ds.Expression]:
    """By path, what is true for all rows of the files that lack a bound of a column.

    delta-rs says of such a file that the column is `>= null`: each condition on the column would leave out the file.
    """
    bounded = [name for name in columns if f"min.{name}" in adds.column_names]
    lacks = [adds[f"{end}.{name}"].is_null() for name in bounded for end in ("min", "max")]
    incomplete = adds.filter(functools.reduce(pc.or_, lacks)) if lacks else adds.slice(0, 0)
    return {unquote(add["path"]): _describe_rows(add, bounded) for add in incomplete.to_pylist()}


def _describe_rows(add: Mapping[str, Any], bounded: Sequence[str]) -> ds.Expression:
    """The values of a file's partition, and the bounds of columns without NULL."""
    values = {name.removeprefix("partition."): value for name, value in add.items() if name.startswith("partition.")}
    terms = [ds.field(name).is_null() if value is None else ds.field(name) == value for name, value in values.items()]
    for name in (name for name in bounded if add.get(f"null_count.{name}") == 0):
        low, high = add[f"min.{name}"], add[f"max.{name}"]
        terms += [ds.field(name) >= low] if low is not None else []
        terms += [ds.field(name) <= high] if high is not None else []
    return functools.reduce(operator.and_, terms, ds.scalar(True))


def open_table_files(table: KnownTable) -> fs.FileSystem:
    """A file system rooted at the folder of `table`, for the paths of its files."""
    place = table.table_uri.rstrip("/")
    if place.startswith("file://"):
        place = fs.FileSystem.from_uri(place)[1]
    files, root = open_files(place)
    return fs.SubTreeFileSystem(root, files)
