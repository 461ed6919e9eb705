"""Files of a Delta table, written where their rows are made and no part of it until a commit names them.

Their names were never used before, so an attempt that died, or a second one, changes nothing: VACUUM drops it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlake.base.lakecolumns import Binlog, Message, Mutation, Statement
from binlake.lake.tables import LakeTable

_SQL = f"{Statement.SQL}.list.element"
_UNIQUE = (
    Mutation.KEY, Mutation.NEW_KEY, Binlog.PAYLOAD, _SQL, Statement.VERIFY_SQL, Statement.DIGEST, Message.VALUE,
)  # fmt: skip
"""Beside the values of maps, what hardly repeats: a dictionary of it would cost a third of the writing."""
_LONG = (Binlog.PAYLOAD, _SQL, Statement.VERIFY_SQL, Message.VALUE)
"""Beside the maps, what no question is asked by: the least and greatest of it are not kept."""

Rows: TypeAlias = pa.RecordBatch | pa.Table


@dataclass(frozen=True)
class Part:
    """A file of a table.

    `path` below the table; `values` of the column that it is partitioned by; `size` in bytes; `stats` as Delta's JSON.
    """

    path: str
    values: dict[str, str]
    size: int
    rows: int
    stats: str


def write_parts(folder: str, table: LakeTable, batches: Iterable[Rows]) -> list[Part]:
    """Write `batches` of a `table` that one column partitions below the local `folder`; after an error no file is left.

    A file for each value of the column (a day, a window), a group of rows a batch. Raises what `batches` raises, and
    OSError.
    """
    (name,) = table.partitioned_by
    writers: dict[str, tuple[Path, pq.ParquetWriter]] = {}
    try:
        for batch in batches:
            for value, rows in _by_value(batch, name):
                if value not in writers:
                    writers[value] = _open(Path(folder) / f"{name}={value}", rows.schema)
                writers[value][1].write(rows)
        for _, writer in writers.values():
            writer.close()
    except BaseException:
        for path, writer in writers.values():
            writer.close()
            path.unlink(missing_ok=True)
        raise
    return [_part(Path(folder), path, {name: value}, table) for value, (path, _) in writers.items()]


def _by_value(batch: Rows, name: str) -> Iterator[tuple[str, Rows]]:
    """The rows of each value of the column `name`, without it: the value is the folder's name."""
    column, rows = batch.column(name), batch.drop_columns([name])
    found = pc.unique(column)
    for value in found:
        yield str(value.as_py()), rows if len(found) == 1 else rows.filter(pc.equal(column, value))


def _open(folder: Path, schema: pa.Schema) -> tuple[Path, pq.ParquetWriter]:
    path = folder / f"part-{uuid.uuid4()}.zstd.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    maps = [field.name for field in schema if pa.types.is_map(field.type)]
    plain = [_leaf(field) for field in schema if field.name not in maps]
    repeated = [name for name in plain if name not in _UNIQUE] + [f"{name}.key_value.key" for name in maps]
    writer = pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeated,
        write_statistics=[name for name in plain if name not in _LONG],
        store_schema=False,
    )
    return path, writer


def _leaf(field: pa.Field) -> str:
    """The path of a column that is no map."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else str(field.name)


def _part(folder: Path, path: Path, values: dict[str, str], table: LakeTable) -> Part:
    found = pq.read_metadata(path)
    stats = json.dumps(_stats(found, table.indexed), separators=(",", ":"))
    return Part(str(path.relative_to(folder)), values, path.stat().st_size, found.num_rows, stats)


def _stats(found: pq.FileMetaData, indexed: Iterable[str]) -> dict[str, object]:
    """Delta's statistics of a file, from those of its groups of rows."""
    least, most, nulls = {}, {}, {}
    # By their paths: the keys of a map are called `key` as well.
    columns = [found.schema.column(number).path for number in range(len(found.schema))]
    for name in indexed:
        column = columns.index(name)
        groups = [found.row_group(number).column(column).statistics for number in range(found.num_row_groups)]
        least[name] = min(group.min for group in groups)
        most[name] = max(group.max for group in groups)
        nulls[name] = sum(group.null_count for group in groups)
    return {"numRecords": found.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}
