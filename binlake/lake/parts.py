"""Files of a Delta table, written where their rows are made and no part of it until a commit names them.

Their names were never used before, so an attempt that died, or a second one, changes nothing: VACUUM drops it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlake.lake.tables import LakeTable

DAY = "commit_date"
_UNIQUE = ("key", "new_key")
"""Beside the values of maps, texts that hardly repeat: a dictionary of them would cost a third of the writing."""


@dataclass(frozen=True)
class Part:
    """A file of a table that is partitioned by `commit_date`.

    `path` below the table; `day` in ISO form; `size` in bytes; `stats` as Delta's JSON.
    """

    path: str
    day: str
    size: int
    rows: int
    stats: str


def write_parts(folder: str, table: LakeTable, batches: Iterable[pa.RecordBatch]) -> list[Part]:
    """Write `batches` of `table` below the local `folder`: a file a day, a group of rows a batch; after an error none.

    Raises what `batches` raises, and OSError.
    """
    writers: dict[date, tuple[Path, pq.ParquetWriter]] = {}
    try:
        for batch in batches:
            for day, rows in _by_day(batch):
                if day not in writers:
                    writers[day] = _open(Path(folder), day, rows.schema)
                writers[day][1].write_batch(rows)
        for _, writer in writers.values():
            writer.close()
    except BaseException:
        for path, writer in writers.values():
            writer.close()
            path.unlink(missing_ok=True)
        raise
    return [_part(Path(folder), path, day, table) for day, (path, _) in writers.items()]


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[date, pa.RecordBatch]]:
    """The rows of each day, without its column: that is the folder's name."""
    days, rows = batch.column(DAY), batch.drop_columns([DAY])
    found = pc.unique(days)
    for day in found:
        yield day.as_py(), rows if len(found) == 1 else rows.filter(pc.equal(days, day))


def _open(folder: Path, day: date, schema: pa.Schema) -> tuple[Path, pq.ParquetWriter]:
    path = folder / f"{DAY}={day}" / f"part-{uuid.uuid4()}.zstd.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    maps = [field.name for field in schema if pa.types.is_map(field.type)]
    plain = [field.name for field in schema if field.name not in maps]
    repeated = [name for name in plain if name not in _UNIQUE] + [f"{name}.key_value.key" for name in maps]
    writer = pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=repeated,
        write_statistics=plain,
        store_schema=False,
    )
    return path, writer


def _part(folder: Path, path: Path, day: date, table: LakeTable) -> Part:
    found = pq.read_metadata(path)
    stats = json.dumps(_stats(found, table.indexed), separators=(",", ":"))
    return Part(str(path.relative_to(folder)), day.isoformat(), path.stat().st_size, found.num_rows, stats)


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
