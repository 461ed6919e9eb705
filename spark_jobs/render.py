"""How the net changes of a window are cut into chunks and batches, and their SQL in the workers.

Deterministic from the rows alone: chunks are made of hash buckets of the key by counted rows and bytes, rows are sorted
by key inside a chunk, and each chunk has numbers of its own for its batches (with gaps behind the last one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from binlake.downstream import too_many_rows
from binlake.errors import Permanent
from binlake.schema import TableDef
from binlake.statement import (
    BatchLimits,
    KeptStatements,
    Phase,
    StatementBatch,
    TableStatements,
    images_from_maps,
)
from spark_jobs.keeping import kept, written
from spark_jobs.lake import folds
from spark_jobs.statements import batch_row, statement_table

BUCKETS = 64
CHUNK_ROWS = 50_000
CHUNK_BYTES = 64 << 20

TEXT_FACTOR = 4
"""Bytes of SQL for a byte of text at most: escapes double it, hex and float conditions take more."""
ENTRY_BYTES = 300
"""Bytes of SQL for each column at most, besides its text: names and punctuation."""

PLACE = ("segment", "phase", "db", "table")
Place = tuple[int, int, str, str]


@dataclass(frozen=True)
class Chunk:
    """Rows of one place rendered by one call: its hash `buckets`, and its first and last batch number."""

    place: Place
    number: int
    buckets: tuple[int, ...]
    first_batch: int
    last_batch: int


def placed(changes: DataFrame) -> DataFrame:
    """`change` with its phase and bucket."""
    phase = F.when(F.col("op") == "delete", int(Phase.DELETE)).otherwise(int(Phase.WRITE))
    bucket = F.pmod(F.xxhash64("key"), F.lit(BUCKETS)).cast("int")
    return changes.withColumn("phase", phase).withColumn("bucket", bucket)


def sizes(changes: DataFrame, columns: list[str]) -> list[Any]:
    """Per place and bucket: rows, bytes of their SQL at most, and the folds of `columns`; one small row each."""
    image = F.coalesce("after", "before")
    text = F.octet_length(F.array_join(F.map_values(image), "", "")) * TEXT_FACTOR + F.size(image) * ENTRY_BYTES
    counted = [F.greatest(F.count("*"), F.sum("copies")).alias("rows"), F.sum(text * F.col("copies")).alias("bytes")]
    kept: list[Column] = [fold.alias(f"fold{n}") for n, fold in enumerate(folds(changes, columns))]
    found = changes.groupBy(*PLACE, "bucket").agg(*counted, *kept).collect()
    return sorted(found, key=lambda row: tuple(row[name] for name in (*PLACE, "bucket")))


def require_segments(counted: Sequence[Any], most: int, window: str) -> None:
    """Every segment fits into one transaction. Raises Permanent before anything is sealed (hazards R-30)."""
    for number, rows in groupby(counted, key=lambda row: row["segment"]):
        found = sum(row["rows"] for row in rows)
        if found > most:
            raise too_many_rows(window, number, found, most)


def chunks(counted: Sequence[Any], limits: BatchLimits) -> list[Chunk]:
    """Chunks in order of place; batch numbers of one (segment, phase) never meet."""
    found: list[Chunk] = []
    for _, phase in groupby(counted, key=lambda row: (row["segment"], row["phase"])):
        first = 0
        for place, rows in groupby(phase, key=lambda row: tuple(row[name] for name in PLACE)):
            for number, part in enumerate(_parts(list(rows))):
                size, text = sum(row["rows"] for row in part), sum(row["bytes"] for row in part)
                # Two neighbours that were cut for their bytes hold more than one bound together.
                last = first + size // limits.rows + 1 + 2 * (text // limits.bytes + 1)
                found.append(Chunk(place, number, tuple(row["bucket"] for row in part), first, last))
                first = last + 1
    return found


def _parts(rows: list[Any]) -> Iterable[list[Any]]:
    part: list[Any] = []
    for row in rows:
        full = sum(r["rows"] for r in part) >= CHUNK_ROWS or sum(r["bytes"] for r in part) >= 4 * CHUNK_BYTES
        if part and full:
            yield part
            part = []
        part.append(row)
    yield part


@dataclass(frozen=True)
class Renderer:
    """Chunks to rows of `statement`, in the workers. `tables`: definitions by (segment, db, table); `plain`: outside
    safe mode; `copies`: by the same place, the table (quoted) that keeps what the target alone has.
    """

    window: str
    tables: Mapping[tuple[int, str, str], TableDef]
    chunks: Mapping[tuple[Place, int], Chunk]
    dialect: str
    limits: BatchLimits
    plain: bool
    copies: Mapping[tuple[int, str, str], str] = field(default_factory=dict)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """All rows of one chunk to its batches. Raises SchemaError, Permanent."""
        head = rows.slice(0, 1).to_pylist()[0]
        place = (head["segment"], head["phase"], head["db"], head["table"])
        chunk = self.chunks[place, head["chunk"]]
        table = self.tables[head["segment"], head["db"], head["table"]]
        ordered = rows.sort_by("key")
        writer: TableStatements | KeptStatements
        if head["phase"] in (Phase.KEEP, Phase.RESTORE):
            writer = self._kept_writer(table, chunk)
            found: Iterable[StatementBatch] = kept(writer, table, ordered, head["phase"])
        else:
            writer = self._writer(table, chunk)
            found = _batches(writer, table, ordered, head["phase"])
        batches = [batch_row(self.window, batch) for batch in found]
        if writer.next_batch - 1 > chunk.last_batch:
            raise Permanent("a chunk has more batches than numbers", where={"window": self.window, "table": table.name})
        return statement_table(batches)

    def _writer(self, table: TableDef, chunk: Chunk) -> TableStatements:
        return TableStatements(
            table,
            chunk.place[0],
            dialect=self.dialect,  # type: ignore[arg-type]
            limits=self.limits,
            first_batch=chunk.first_batch,
            plain=self.plain,
        )

    def _kept_writer(self, table: TableDef, chunk: Chunk) -> KeptStatements:
        segment, _, db, name = chunk.place
        return KeptStatements(
            table,
            segment,
            self.copies[segment, db, name],
            dialect=self.dialect,  # type: ignore[arg-type]
            limits=self.limits,
            first_batch=chunk.first_batch,
        )


def _batches(writer: TableStatements, table: TableDef, rows: pa.Table, phase: int) -> Iterable[StatementBatch]:
    deleted = phase == Phase.DELETE
    keyless = table.identity().kind == "row"
    maps = rows.column("before" if deleted else "after").combine_chunks()
    names = table.identity().columns if deleted and not keyless else [column.name for column in table.row_columns]
    images = images_from_maps(maps, names)
    if not keyless:
        return writer.deletes(images) if deleted else written(writer, rows, images)
    copies = rows.column("copies").to_pylist()
    return writer.image_deletes(images, copies) if deleted else writer.inserts(images, copies)
