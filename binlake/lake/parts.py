"""Writes files of a Delta table where their rows are computed. A file joins the table when a commit names it.

File names are always new, so a failed or repeated attempt changes nothing; VACUUM removes its files.

A file's statistics for Delta are those that Arrow's writer has left in it. Rules: a minimum is never too high and a
maximum never too low. Each plain column with values has both, since delta-rs reads a missing one as a comparison with
NULL, which no row passes.
"""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from binlake.common.lakecolumns import Binlog, Message, Mutation, Statement
from binlake.lake.store import delete_file, open_files
from binlake.lake.tables import LakeTable

_SQL = f"{Statement.SQL}.list.element"
_UNIQUE = (
    Mutation.KEY, Mutation.NEW_KEY, Binlog.PAYLOAD, _SQL, Statement.VERIFY_SQL, Statement.DIGEST, Message.VALUE,
)  # fmt: skip
"""Columns with few repeated values, as also the values of maps: a dictionary would take a third of the writing time."""
_LONG = (Binlog.PAYLOAD, _SQL, Statement.VERIFY_SQL, Message.VALUE)
"""Columns, besides maps, by which no query filters: their minimum and maximum are not stored."""

Rows: TypeAlias = pa.RecordBatch | pa.Table


@dataclass(frozen=True)
class TablePart:
    """A file of a table.

    `path`: relative to the table; `values`: of the partition column; `size`: in bytes; `stats`: as Delta's JSON.
    """

    path: str
    values: dict[str, str]
    size: int
    rows: int
    stats: str


def write_parts(folder: str, table: LakeTable, batches: Iterable[Rows]) -> list[TablePart]:
    """Write `batches` of a `table` partitioned by one column to its `folder`. An error leaves no file.

    Writes one file per value of the column (a day, a window) and one row group per batch. Raises what `batches` raises,
    and OSError.
    """
    (name,) = table.partitioned_by
    writers: dict[str, _Writer] = {}
    try:
        for batch in batches:
            for value, rows in _split_by_value(batch, name):
                if value not in writers:
                    writers[value] = _Writer(folder, f"{name}={value}", rows.schema)
                writers[value].write(rows)
        return [writer.close(table, {name: value}) for value, writer in writers.items()]
    except BaseException:
        for writer in writers.values():
            writer.discard()
        raise


def _split_by_value(batch: Rows, name: str) -> Iterator[tuple[str, Rows]]:
    """(value, rows) for each value of the column `name`, without that column: the folder's name has the value."""
    column, rows = batch.column(name), batch.drop_columns([name])
    values = pc.unique(column)
    for value in values:
        yield str(value.as_py()), rows if len(values) == 1 else rows.filter(pc.equal(column, value))


class _Writer:
    """Writes one new file in the folder `partition` of a table's `folder`."""

    def __init__(self, folder: str, partition: str, schema: pa.Schema) -> None:
        self._folder, self._path = folder, f"{partition}/part-{uuid.uuid4()}.zstd.parquet"
        files, root = open_files(folder)
        if isinstance(files, fs.LocalFileSystem):
            files.create_dir(f"{root}/{partition}")
        self._sink = files.open_output_stream(f"{root}/{self._path}")
        self._opened: list[pa.NativeFile | pq.ParquetWriter] = [self._sink]
        try:
            self._parquet = _open_parquet_writer(self._sink, schema)
        except BaseException:
            self.discard()
            raise
        self._opened.insert(0, self._parquet)

    def write(self, rows: Rows) -> None:
        """Append `rows`."""
        self._parquet.write(rows)

    def close(self, table: LakeTable, values: dict[str, str]) -> TablePart:
        """Complete the file."""
        self._parquet.close()
        size = int(self._sink.tell())
        self._sink.close()
        metadata = self._parquet.writer.metadata
        return TablePart(self._path, values, size, metadata.num_rows, describe_file(metadata, table.indexed))

    def discard(self) -> None:
        """Delete the file, complete or not."""
        # On a disk that is still full, closing fails as writing did, and that error is raised already.
        for opened in self._opened:
            with suppress(OSError):
                opened.close()
        delete_file(f"{self._folder}/{self._path}")


def _open_parquet_writer(sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
    maps = [field.name for field in schema if pa.types.is_map(field.type)]
    plain = [_build_leaf_path(field) for field in schema if field.name not in maps]
    repeated = [name for name in plain if name not in _UNIQUE] + [f"{name}.key_value.key" for name in maps]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeated,
        write_statistics=[name for name in plain if name not in _LONG],
        store_schema=False,
    )


def _build_leaf_path(field: pa.Field) -> str:
    """The Parquet path of a column that is not a map."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


_LONGEST = 256
"""Characters of a text's bound, as in a log of some hundred files."""
_LAST = "\U0010ffff"
_MS = timedelta(milliseconds=1)
_MOST = sys.float_info.max
_WIDEST: Mapping[str, tuple[Any, Any]] = {"STRING": ("", _LAST), "DOUBLE": (-_MOST, _MOST), "FLOAT": (-_MOST, _MOST)}
"""Bounds that exclude no value, by the type of the column in the file: its logical one, else its physical one."""


def describe_file(metadata: pq.FileMetaData, columns: Collection[str] | None = None) -> str:
    """The statistics as Delta's JSON: the number of rows, and of each plain column (of `columns`) bounds and NULLs."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(len(metadata.schema)):
        name = metadata.schema.column(number).path
        if columns is not None and name not in columns:
            continue
        groups = [metadata.row_group(at).column(number).statistics for at in range(metadata.num_row_groups)]
        if metadata.schema.column(number).max_repetition_level or any(one is None for one in groups):
            continue
        if all(one.has_null_count for one in groups):
            nulls[name] = sum(one.null_count for one in groups)
        bounds = _find_bounds([one for one in groups if one.num_values])
        if bounds is not None:
            least[name], most[name] = bounds
    stats = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
    return json.dumps(stats, separators=(",", ":"))


def _find_bounds(groups: Sequence[pq.Statistics]) -> tuple[Any, Any] | None:
    """(the minimum, the maximum) for JSON; None without values, or for a type that Delta gives no bounds."""
    if not groups:
        return None
    if not all(one.has_min_max for one in groups):
        # Of long texts, and of numbers if all are NaN, Arrow's writer has none.
        return _WIDEST.get(groups[0].logical_type.type) or _WIDEST.get(groups[0].physical_type)
    values = list(_read_bounds(groups))
    low, high = min(low for low, _ in values), max(high for _, high in values)
    if isinstance(low, datetime) and isinstance(high, datetime):
        return _format_ms(low), _format_ms(high + _MS)
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, str):
        return low[:_LONGEST], high if len(high) <= _LONGEST else high[:_LONGEST] + _LAST
    if isinstance(low, Decimal):
        return _round_down(low), -_round_down(-high)
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
        return _WIDEST["DOUBLE"]
    return (low, high) if isinstance(low, int | float) else None


def _round_down(value: Decimal) -> float:
    """The greatest float that is not above `value`."""
    near = float(value)
    return near if Decimal(near) <= value else math.nextafter(near, -math.inf)


def _read_bounds(groups: Sequence[pq.Statistics]) -> Iterator[tuple[Any, Any]]:
    for one in groups:
        yield one.min, one.max


def _format_ms(moment: datetime) -> str:
    """Delta's text of `moment`, whole milliseconds at or below it."""
    text = moment.isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z") if moment.tzinfo else text.replace("T", " ")
