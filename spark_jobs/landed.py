"""What is in `binlog` of a window: the counts and the digest that its manifest seals, of what is written.

One function over Arrow counts and digests: the driver calls it for what it has, Spark's workers for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from binlake.lake import rowhash
from binlake.lake.rowhash import Fold
from binlake.lake.rowhistory import rows_between
from binlake.lake.tables import BINLOG, arrow_schema
from spark_jobs.context import Bounds, StageContext
from spark_jobs.lake import FOLD_COLUMNS, Rows, fold_row, folds_in, may_have, read, within

DIGEST_COLUMNS = ["commit_ts", "start_ts", "chunk", "kind", "schema_version", "job_id", "schema_state", "payload"]
_COUNTS = "dml BIGINT, ddls BIGINT, chunks BIGINT, bytes BIGINT"
_PART = f"{_COUNTS}, {FOLD_COLUMNS}"


@dataclass(frozen=True)
class Landed:
    """Transactions by kind, chunks above the first, payload bytes, and the fold of all rows."""

    dml: int
    ddls: int
    chunks: int
    bytes: int
    fold: Fold

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.dml + self.ddls + self.chunks

    @property
    def digest(self) -> str:
        """The digest of all rows."""
        return rowhash.digest_of(self.fold)


NONE = Landed(0, 0, 0, 0, rowhash.merged([]))


def stored(ctx: StageContext, bounds: Bounds, *, here: bool) -> Landed:
    """What is in `binlog` of `bounds`; `here`: it is small enough to be read by this process."""
    if not may_have(ctx.paths, BINLOG, f"commit_ts > {bounds.lo}"):
        return NONE
    if here:
        return landed_of(rows_between(ctx.paths, BINLOG, bounds.lo, bounds.hi, DIGEST_COLUMNS))
    return landed_of(read(ctx.spark, ctx.paths, BINLOG).where(within(bounds.lo, bounds.hi)))


def landed_of(rows: Rows) -> Landed:
    """What `rows` of `binlog` are."""
    return _part_of(rows) if isinstance(rows, pa.Table) else _by_spark(rows)


def _part_of(rows: pa.Table | pa.RecordBatch) -> Landed:
    first = pc.equal(rows["chunk"], 0)
    dml, ddls = (_count(pc.and_(first, pc.equal(rows["kind"], kind))) for kind in ("dml", "ddl"))
    size = pc.sum(pc.binary_length(rows["payload"])).as_py() or 0
    fold = rowhash.fold(rowhash.row_hashes(rows, DIGEST_COLUMNS))
    return Landed(dml, ddls, _count(pc.invert(first)), size, fold)


def _by_spark(rows: DataFrame) -> Landed:
    parts = rows.select(*DIGEST_COLUMNS).mapInArrow(_parts, _PART).toArrow()
    counts = zip(*(column.to_pylist() for column in parts.columns[:4]), strict=True)
    return _together(Landed(*own, fold) for own, fold in zip(counts, folds_in(parts), strict=True))


def _parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        part = _part_of(batch)
        values = (part.dml, part.ddls, part.chunks, part.bytes, *fold_row(part.fold))
        yield pa.RecordBatch.from_arrays(
            [pa.array([value], pa.int64()) for value in values], schema=arrow_schema(_PART)
        )


def _together(parts: Iterable[Landed]) -> Landed:
    found = list(parts)
    counts = [sum(getattr(part, name) for part in found) for name in ("dml", "ddls", "chunks", "bytes")]
    return Landed(*counts, rowhash.merged(part.fold for part in found))


def _count(flags: pa.ChunkedArray) -> int:
    return pc.sum(flags).as_py() or 0
