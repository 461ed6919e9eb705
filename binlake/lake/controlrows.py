"""The rows of a control table at one version: rows of small files are cached in memory, large files are read.

Rule: a file of a Delta table never changes, so its cached rows are valid as long as a version names it. A stage queries
its control tables about sixty times, and without the cache each query read up to 64 files of one row.

In an object store, one object beside the table has the rows of its small files, for processes that have read none. Its
rows are right however old it is; files that it does not have are read one by one.
"""

from __future__ import annotations

import heapq
import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import count
from operator import and_
from typing import cast
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from binlake.lake.objects import find_object, put_object, read_object
from binlake.lake.opentable import KnownTable, hold_whole, list_sizes, open_dataset, open_table_files
from binlake.lake.storetable import StoreTable

_NAME = "_rows/small.parquet"
_FILE = "_file"
_MOST_BYTES = 4 << 20
"""Of the rows in memory: more are not stored again and again."""


def store_small_rows(path: str, files: Mapping[str, pa.Table]) -> None:
    """Store the rows of these files of the table at `path` in one request, unless they are many.

    Raises BinlakeError.
    """
    if not files or sum(rows.nbytes for rows in files.values()) > _MOST_BYTES:
        return
    named = [rows.append_column(_FILE, pa.repeat(pa.scalar(file), rows.num_rows)) for file, rows in files.items()]
    sink = io.BytesIO()
    pq.write_table(pa.concat_tables(named), sink, compression="zstd", store_schema=False)
    put_object(path, _NAME, sink.getvalue())


def fetch_small_rows(path: str, schema: pa.Schema) -> dict[str, pa.Table]:
    """The stored rows by file, with the columns of `schema`; none if others were stored. Raises BinlakeError."""
    content = find_object(path, _NAME)
    if content is None:
        return {}
    stored = pq.read_table(pa.BufferReader(content))
    if stored.schema.names != [*schema.names, _FILE]:
        return {}
    files = stored.column(_FILE)
    return {
        file: stored.filter(pc.equal(files, file)).select(schema.names).cast(schema)
        for file in pc.unique(files).to_pylist()
    }


SMALL_BYTES = 64 << 10
"""Files up to this size are cached in memory: some hundred events."""
HELD_BYTES = 2 << 20
"""Larger files up to this size come whole from a store: that takes less time than two requests."""
_MOST_TABLES = 64
"""The number of cached tables, the last used ones: a process may use many lakes."""
_MOST_FOUND = 32
"""The number of row groups of large files whose matching rows are kept."""
_FEW_FILES = 4
"""So many are read one by one."""
_PARTITION = "partition."


@dataclass(frozen=True)
class LargePart:
    """A row group of the large file `path`, or all of it."""

    path: str
    part: ds.Fragment


@dataclass(frozen=True)
class ControlRows:
    """The rows of one version.

    `small`: the rows of the small files; `large`: the other files, if any; `adds`: by path, the files' statistics, such
    as a column's greatest value (`max.COLUMN`).
    """

    table: KnownTable
    version: int
    small: pa.Table
    large: ds.FileSystemDataset | None
    adds: pa.Table
    files: dict[str, pa.Table] = field(repr=False)

    def read(self, columns: Sequence[str], where: ds.Expression | None) -> pa.Table:
        """The rows that match `where`. Large files and row groups whose statistics exclude it are not read."""
        small = self.read_small(columns, where)
        if self.large is None:
            return small
        large = self._hold(self.large.get_fragments(filter=where))
        data = ds.FileSystemDataset(large, self.large.schema, self.large.format, self.large.filesystem)
        return pa.concat_tables([data.to_table(columns=list(columns), filter=where), small])

    def read_small(self, columns: Sequence[str], where: ds.Expression | None) -> pa.Table:
        """As `read`, for the small files only."""
        rows = self.small if where is None else _filter_here(self.small, where)
        return rows.select(list(columns))

    def read_covering(
        self, columns: Sequence[str], bounds: tuple[str, str], moments: Sequence[int], where: ds.Expression | None
    ) -> pa.Table:
        """As `read`, only rows whose range holds one of `moments`; `bounds`: the columns of its ends, (lo, hi].

        Row groups without such rows are not read. Arrow would take longer for a condition of twenty ranges than to read
        all rows between the first and the last one.
        """
        wanted, names = np.unique(np.asarray(moments)), list(dict.fromkeys([*columns, *bounds]))
        rows = [self.read_small(names, where)]
        if self.large is not None:
            groups = [
                group
                for file in self._hold(self.large.get_fragments(filter=where))
                for group in file.split_by_row_group(where, self.large.schema)
                if _may_cover(group, bounds, wanted)
            ]
            chosen = ds.FileSystemDataset(groups, self.large.schema, self.large.format, self.large.filesystem)
            rows += [chosen.to_table(columns=names, filter=where)] if groups else []
        found = pa.concat_tables(rows)
        low, high = (np.searchsorted(wanted, found.column(name).to_numpy(), side="right") for name in bounds)
        return found.filter(pa.array(high > low)).select(list(columns))

    def read_group(self, group: LargePart, columns: Sequence[str], where: ds.Expression | None) -> pa.Table:
        """The rows of a row group of a large file that match `where`; the last results are kept.

        Each stage asks for the newest events of its kind, which are often in the same group.
        """
        key = (group.path, group.part.row_groups[0].id, tuple(columns), str(where))
        with _lock:
            rows = _found.pop(key, None)
        if rows is None:
            rows = group.part.to_table(self.small.schema, columns=list(columns), filter=where)
        with _lock:
            _found[key] = rows
            if len(_found) > _MOST_FOUND:
                del _found[next(iter(_found))]
        return rows

    def iterate_newest_first(self, column: str, where: ds.Expression | None) -> Iterator[tuple[int, LargePart | None]]:
        """(greatest `column`, row group) of the large files that `where` does not exclude, greatest first.

        Before the end of a file is read for its row groups comes (its greatest `column`, None): the caller may stop.
        """
        if self.large is None:
            return
        most: dict[str, int | None] = {}
        if f"max.{column}" in self.adds.column_names:
            paths = map(unquote, self.adds["path"].to_pylist())
            most = dict(zip(paths, self.adds[f"max.{column}"].to_pylist(), strict=True))
        files, numbers = self.large.get_fragments(filter=where), count()
        # The numbers only make each entry's order definite.
        waiting = [
            (-_or_greatest(most.get(file.path)), next(numbers), False, LargePart(file.path, file)) for file in files
        ]
        heapq.heapify(waiting)
        while waiting:
            # A file is divided only when its turn comes: most reads end in the newest one.
            negated, _, is_group, one = heapq.heappop(waiting)
            yield -negated, one if is_group else None
            if is_group:
                continue
            for part in self._hold([one.part])[0].split_by_row_group(where, self.large.schema):
                greatest = (part.row_groups[0].statistics or {}).get(column, {}).get("max")
                heapq.heappush(waiting, (-_or_greatest(greatest), next(numbers), True, LargePart(one.path, part)))

    def _hold(self, files: Iterable[ds.Fragment]) -> list[ds.Fragment]:
        """Large `files`: those of a store that are not too large come whole, as several reads of each follow."""
        if not isinstance(self.table, StoreTable):
            return list(files)
        return hold_whole(self.table.path, list(files), list_sizes(self.adds), HELD_BYTES)


def _may_cover(group: ds.Fragment, bounds: tuple[str, str], wanted: npt.NDArray[np.int64]) -> bool:
    """Whether a row of a row group may have a range (lo, hi] with one of `wanted`, which is sorted."""
    known = group.row_groups[0].statistics or {}
    if not all(name in known for name in bounds):
        return True
    least, most = known[bounds[0]]["min"], known[bounds[1]]["max"]
    return bool(np.searchsorted(wanted, most, side="right") > np.searchsorted(wanted, least, side="right"))


def _or_greatest(value: int | None) -> int:
    """`value`; without statistics, a file or row group may have any value, so it comes first."""
    return 2**63 - 1 if value is None else value


def _filter_here(rows: pa.Table, where: ds.Expression) -> pa.Table:
    """The `rows` that match `where`, found in this thread: handing a few rows to others costs as much as the work."""
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(rows))
    found: pa.Table = acero.Declaration("filter", acero.FilterNodeOptions(where), [source]).to_table(use_threads=False)
    return found


_lock = threading.Lock()
_cached: dict[tuple[str, pa.Schema], ControlRows] = {}
_found: dict[tuple[str, int, tuple[str, ...], str], pa.Table] = {}
"""Matching rows by file, row group, columns and condition."""


def read_control_rows(path: str, table: KnownTable, schema: pa.Schema) -> ControlRows:
    """The rows of `table`, which is at `path`, at its opened version, with the columns of `schema`."""
    key = (path, schema)
    with _lock:
        cached = _cached.get(key)
    if cached is None or cached.table is not table or cached.version != table.version():
        # Read without the lock: otherwise concurrent stages would wait for each other's files.
        cached = _read(table, schema, cached)
    with _lock:
        _cached.pop(key, None)
        _cached[key] = cached
        if len(_cached) > _MOST_TABLES:
            del _cached[next(iter(_cached))]
    return cached


def remember_rows(path: str, table: KnownTable, schema: pa.Schema, rows: pa.Table) -> ControlRows | None:
    """Let later reads know `rows`, which were just written to `table` at `path`, so that they do not read them again.

    Returns all rows after the write; None if there is more to read, because others have written too, or nothing had
    been read before. Does nothing if it cannot tell the file of `rows`: it must be the only one with unknown rows, and
    have as many.
    """
    with _lock:
        cached = _cached.get((path, schema))
    if cached is None:
        return None
    adds = pa.table(table.get_add_actions(flatten=True))
    before = {*cached.adds["path"].to_pylist(), *cached.files}
    listed = adds.select(["path", "size_bytes", "num_records"]).to_pylist()
    new = [add for add in listed if add["path"] not in before and unquote(add["path"]) not in before]
    if [add["num_records"] for add in new] != [rows.num_rows] or new[0]["size_bytes"] > SMALL_BYTES:
        return None
    cached.files[unquote(new[0]["path"])] = rows
    version = table.version()
    if cached.table is not table or (version, adds.num_rows) != (cached.version + 1, cached.adds.num_rows + 1):
        return None
    small = pa.concat_tables([cached.small, rows]).combine_chunks()
    extended = ControlRows(table, version, small, cached.large, adds, cached.files)
    with _lock:
        _cached[path, schema] = extended
    return extended


def remember_files(path: str, schema: pa.Schema, files: Mapping[str, pa.Table]) -> None:
    """Let later reads of the table at `path` know the rows of these new files, by path, if it was read before."""
    with _lock:
        cached = _cached.get((path, schema))
    if cached is not None:
        cached.files.update(files)


def _read(table: KnownTable, schema: pa.Schema, before: ControlRows | None) -> ControlRows:
    """Read the rows of `table`. `before`: those of another version."""
    version, adds = table.version(), pa.table(table.get_add_actions(flatten=True))
    files = _read_files(table, adds, schema, {} if before is None else before.files)
    large = _open_large(table, {unquote(path) for path in adds["path"].to_pylist()} - files.keys(), before)
    small = pa.concat_tables([schema.empty_table(), *files.values()]).combine_chunks()
    return ControlRows(table, version, small, large, adds, files)


def _open_large(table: KnownTable, paths: set[str], before: ControlRows | None) -> ds.FileSystemDataset | None:
    """The large files `paths` of `table`; those of `before`, if they are the same, keep what was read of them."""
    if not paths:
        return None
    if before is not None and before.large is not None and before.table is table:
        fragments = list(before.large.get_fragments())
        if {fragment.path for fragment in fragments} == paths:
            return before.large
    # This takes half a millisecond per file, so it is not done for tables with only small files.
    data = open_dataset(table)
    fragments = [fragment for fragment in data.get_fragments() if fragment.path in paths]
    return ds.FileSystemDataset(fragments, data.schema, data.format, data.filesystem)


def _read_files(
    table: KnownTable, adds: pa.Table, schema: pa.Schema, before: dict[str, pa.Table]
) -> dict[str, pa.Table]:
    """The rows of each small file by its path. `before`: those of files that were read for another version."""
    if table.protocol().reader_features:
        # Raises for features that change the meaning of a file, such as deletion vectors.
        open_dataset(table)
    if isinstance(table, StoreTable) and not before and adds.num_rows > _FEW_FILES:
        before = fetch_small_rows(table.path, schema)
    open_file = _choose_opener(table)
    partitions = [name for name in adds.column_names if name.startswith(_PARTITION)]
    read = {}
    for add in adds.filter(ds.field("size_bytes") <= SMALL_BYTES).select(["path", *partitions]).to_pylist():
        # The paths in the log are URL-encoded.
        path = unquote(add["path"])
        if path in before:
            read[path] = before[path]
        else:
            values = [_equals(name.removeprefix(_PARTITION), add[name]) for name in partitions]
            read[path] = _read_file(open_file, path, reduce(and_, values) if values else None, schema)
    return read


def _choose_opener(table: KnownTable) -> Callable[[str], pa.NativeFile]:
    """What opens a small file of `table`: in a store it is got whole, in one request instead of three."""
    if isinstance(table, StoreTable):
        place = table.path
        return lambda path: pa.BufferReader(read_object(place, path))
    return cast(Callable[[str], pa.NativeFile], open_table_files(table).open_input_file)


def _read_file(
    open_file: Callable[[str], pa.NativeFile], path: str, partition: ds.Expression | None, schema: pa.Schema
) -> pa.Table:
    with open_file(path) as file:
        return ds.ParquetFileFormat().make_fragment(file, partition_expression=partition).to_table(schema)


def _equals(column: str, value: object) -> ds.Expression:
    return ds.field(column).is_null() if value is None else ds.field(column) == value
