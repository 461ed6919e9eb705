"""Rows that a task reads, wherever they are: in memory, in files of the lake, or written by another task.

A reader gets batches of some MiB, in the order of the files: that of the commits only where the writer sorted them. The
rows of a lake table's window are listed as parts of similar size: files, or row groups of large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc

from binlake.common.lakecolumns import History, OfSegment
from binlake.lake.damage import name_damaged_file
from binlake.lake.objects import open_parts
from binlake.lake.opentable import list_file_uris
from binlake.lake.parts import TablePart
from binlake.lake.paths import LakePaths
from binlake.lake.store import open_parquet, read_metadata
from binlake.lake.tables import LakeTable

READ_BYTES = 8 << 20
"""Average bytes of rows that are decoded at a time."""
_PLAIN = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
MOST_PARTS = 128
"""Most parts of a window. With more bytes, each part grows."""
_Group = tuple[str, int, int]
"""File, number of the row group, bytes."""


class Rows(Protocol):
    """Rows of one table; `bytes`: about how many, uncompressed."""

    @property
    def bytes(self) -> int:
        """About how many bytes of Arrow the rows have."""

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows' `columns`, in batches."""

    def list_runs(self) -> list[SortedRun]:
        """Pieces that can be read alone; only for rows that have a commit_ts."""


@dataclass(frozen=True)
class SortedRun:
    """Rows with their least and greatest commit_ts."""

    least: int
    greatest: int
    rows: Rows


@dataclass(frozen=True)
class MemoryRows:
    """Rows in this process's memory."""

    table: pa.Table

    @property
    def bytes(self) -> int:
        """As Rows."""
        return int(self.table.nbytes)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As Rows."""
        yield from self.table.select(list(columns)).to_batches()

    def list_runs(self) -> list[SortedRun]:
        """As Rows."""
        return measure_run(self)


def cut_rows(rows: Rows, most_bytes: int) -> list[Rows]:
    """`rows` in pieces of about `most_bytes`: between their batches in memory, or between the row groups of a file."""
    if rows.bytes <= most_bytes:
        return [rows]
    if isinstance(rows, FileRows):
        return pack_rows(rows.list_groups(), most_bytes)
    return _cut_memory_rows(rows, most_bytes) if isinstance(rows, MemoryRows) else [rows]


def _cut_memory_rows(rows: MemoryRows, most_bytes: int) -> list[Rows]:
    cut: list[list[pa.RecordBatch]] = []
    size = 0
    for batch in rows.table.to_batches():
        size += batch.nbytes
        if not cut or size > most_bytes:
            cut.append([])
            size = batch.nbytes
        cut[-1].append(batch)
    return [MemoryRows(pa.Table.from_batches(batches)) for batches in cut]


@dataclass(frozen=True)
class FileRows:
    """Rows of Parquet files with lo < commit_ts <= hi (`within`; None: all rows).

    `files`: (path, row groups; empty: all of them). Raises LostRange for a damaged file.
    """

    files: tuple[tuple[str, tuple[int, ...]], ...]
    bytes: int
    within: tuple[int, int] | None = None

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As Rows."""
        for path, groups in self.files:
            with name_damaged_file(path), open_parquet(path) as file:
                folder = [name for name in columns if name not in file.schema_arrow.names]
                stored = [name for name in columns if name not in folder]
                if self.within is not None and History.COMMIT_TS not in stored:
                    stored.append(History.COMMIT_TS)
                for number in groups or range(file.num_row_groups):
                    group = file.metadata.row_group(number)
                    step = max(1, READ_BYTES * group.num_rows // max(1, group.total_byte_size))
                    for batch in file.iter_batches(step, [number], stored):
                        own = self._select_own(_use_plain_types(batch))
                        if own.num_rows:
                            yield _add_folder_columns(own, path, folder).select(list(columns))

    def list_groups(self) -> list[FileRows]:
        """Each row group alone; each row counts as many bytes as any other."""
        found: list[tuple[str, int, int]] = []
        for path, groups in self.files:
            with name_damaged_file(path):
                metadata = read_metadata(path)
            numbers = groups or range(metadata.num_row_groups)
            found += [(path, number, metadata.row_group(number).num_rows) for number in numbers]
        total = max(1, sum(rows for _, _, rows in found))
        return [FileRows(((path, (number,)),), self.bytes * rows // total, self.within) for path, number, rows in found]

    def list_runs(self) -> list[SortedRun]:
        """As Rows: each row group is a piece."""
        runs: list[SortedRun] = []
        for path, groups in self.files:
            with name_damaged_file(path):
                metadata = read_metadata(path)
            column = metadata.schema.names.index(History.COMMIT_TS)
            for number in groups or range(metadata.num_row_groups):
                known = metadata.row_group(number).column(column).statistics
                own = FileRows(((path, (number,)),), metadata.row_group(number).total_byte_size, self.within)
                runs += (
                    [SortedRun(known.min, known.max, own)]
                    if known is not None and known.has_min_max
                    else measure_run(own)
                )
        return runs

    def _select_own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.within is None:
            return batch
        lo, hi = self.within
        ts = np.asarray(batch.column(History.COMMIT_TS))
        inside = (ts > lo) & (ts <= hi)
        return batch if inside.all() else batch.filter(pa.array(inside))


def _use_plain_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` without views of texts and bytes, which delta-rs writes when it rewrites rows."""
    kinds = [_choose_plain_type(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    return batch.cast(pa.schema(list(zip(batch.schema.names, kinds, strict=True))))


def _choose_plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind) and {kind.key_type, kind.item_type} & _PLAIN.keys():
        return pa.map_(_choose_plain_type(kind.key_type), _choose_plain_type(kind.item_type))
    if pa.types.is_list(kind) and kind.value_type in _PLAIN:
        return pa.list_(_choose_plain_type(kind.value_type))
    return _PLAIN.get(kind, kind)


def _add_folder_columns(batch: pa.RecordBatch, path: str, names: Sequence[str]) -> pa.RecordBatch:
    """`batch` with the columns that Delta has in the name of the file's folder, such as `window=1-2`."""
    if not names:
        return batch
    name, _, value = Path(path).parent.name.partition("=")
    is_day = name == History.COMMIT_DATE
    column = pa.scalar(date.fromisoformat(value) if is_day else value)
    return batch.append_column(name, pa.repeat(column, batch.num_rows))


@dataclass(frozen=True)
class StoredRows:
    """Rows that a task wrote for later tasks: spans (first byte, bytes) of a file, each an Arrow stream."""

    path: str
    spans: tuple[tuple[int, int], ...]

    @property
    def bytes(self) -> int:
        """As Rows; compressed."""
        return sum(size for _, size in self.spans)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As Rows."""
        with open_parts(self.path) as read_part:
            for at, size in self.spans:
                with ipc.open_stream(pa.py_buffer(read_part(at, size))) as stream:
                    yield from (batch.select(list(columns)) for batch in stream)

    def list_runs(self) -> list[SortedRun]:
        """As Rows."""
        return measure_run(self)


@dataclass(frozen=True)
class MappedRows:
    """`rows` after `step`, which is called with each batch and gets the columns `needs`."""

    rows: Rows
    step: Callable[[pa.Table], pa.Table]
    needs: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """As Rows, before the step."""
        return self.rows.bytes

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As Rows."""
        for batch in self.rows.read(self.needs):
            yield from self.step(pa.Table.from_batches([batch])).select(list(columns)).to_batches()

    def list_runs(self) -> list[SortedRun]:
        """As Rows: a step may change the commit_ts."""
        return measure_run(self)


@dataclass(frozen=True)
class JoinedRows:
    """The rows of all `parts`, one part after the other."""

    parts: tuple[Rows, ...]

    @property
    def bytes(self) -> int:
        """As Rows."""
        return sum(part.bytes for part in self.parts)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """As Rows."""
        return (batch for part in self.parts for batch in part.read(columns))

    def list_runs(self) -> list[SortedRun]:
        """As Rows."""
        return [run for part in self.parts for run in part.list_runs()]


def pack_rows(parts: Sequence[Rows], task_bytes: int) -> list[Rows]:
    """All `parts` in order; neighbours become one as long as they have at most `task_bytes` together."""
    packs: list[list[Rows]] = []
    size = 0
    for part in parts:
        size += part.bytes
        if not packs or size > task_bytes:
            packs.append([])
            size = part.bytes
        packs[-1].append(part)
    return [pack[0] if len(pack) == 1 else JoinedRows(tuple(pack)) for pack in packs]


def measure_run(rows: Rows) -> list[SortedRun]:
    """`rows` as one run, whose ends are read; nothing if there are no rows."""
    ends = [pc.min_max(batch.column(0)).as_py() for batch in rows.read([History.COMMIT_TS]) if batch.num_rows]
    return [SortedRun(min(end["min"] for end in ends), max(end["max"] for end in ends), rows)] if ends else []


def read_table(parts: Iterable[Rows], schema: pa.Schema) -> pa.Table:
    """All rows of `parts` with the columns of `schema`, in this process's memory."""
    batches = [batch.cast(schema) for part in parts for batch in part.read(schema.names)]
    return pa.Table.from_batches(batches, schema)


def list_history_rows(paths: LakePaths, table: LakeTable, lo: int, hi: int, task_bytes: int) -> list[FileRows]:
    """The rows of a history table with lo < commit_ts <= hi, in parts of about `task_bytes`. Raises LostRange."""
    predicate = f"{History.COMMIT_TS} > {lo} AND {History.COMMIT_TS} <= {hi}"
    groups = [group for file in _list_files(paths, table, predicate) for group in _list_groups(file, lo, hi)]
    return _cut_into_parts(groups, task_bytes, (lo, hi))


def list_window_rows(paths: LakePaths, table: LakeTable, window: str, task_bytes: int) -> list[FileRows]:
    """The rows of a window in a table partitioned by window, in parts of about `task_bytes`. Raises LostRange."""
    files = _list_files(paths, table, f"{OfSegment.WINDOW} = '{window}'")
    return _cut_into_parts([group for file in files for group in _list_groups(file)], task_bytes, None)


def list_written_rows(folder: str, parts: Sequence[TablePart], size: int | None = None) -> list[FileRows]:
    """The rows of files that tasks wrote, one part for each file; `size`: bytes of all rows uncompressed, if known."""
    count = max(1, sum(part.rows for part in parts))
    sizes = [part.size if size is None else size * part.rows // count for part in parts]
    return [FileRows(((f"{folder}/{part.path}", ()),), own) for part, own in zip(parts, sizes, strict=True)]


def _list_files(paths: LakePaths, table: LakeTable, predicate: str) -> list[str]:
    return sorted(map(unquote, list_file_uris(paths.locate_table(table.name), predicate)))


def _list_groups(file: str, lo: int | None = None, hi: int | None = None) -> Iterator[_Group]:
    """The row groups of `file` that may have rows with lo < commit_ts <= hi."""
    with name_damaged_file(file):
        metadata = read_metadata(file)
    column = metadata.schema.names.index(History.COMMIT_TS) if lo is not None else -1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        known = group.column(column).statistics if column >= 0 else None
        if known is None or not known.has_min_max or lo is None or hi is None or (known.max > lo and known.min <= hi):
            yield file, number, group.total_byte_size


def _cut_into_parts(groups: list[_Group], task_bytes: int, within: tuple[int, int] | None) -> list[FileRows]:
    most = max(task_bytes, -(-sum(size for _, _, size in groups) // MOST_PARTS))
    parts: list[FileRows] = []
    pending: list[_Group] = []
    for group in groups:
        pending.append(group)
        if sum(size for _, _, size in pending) >= most:
            parts.append(_build_part(pending, within))
            pending = []
    return parts + ([_build_part(pending, within)] if pending else [])


def _build_part(groups: list[_Group], within: tuple[int, int] | None) -> FileRows:
    numbers: dict[str, list[int]] = {}
    for file, number, _ in groups:
        numbers.setdefault(file, []).append(number)
    files = tuple((file, tuple(own)) for file, own in numbers.items())
    return FileRows(files, sum(size for _, _, size in groups), within)
