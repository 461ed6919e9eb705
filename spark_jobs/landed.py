"""What is in `binlog` of a window: the counts and the digest that its manifest seals, read back from the lake.

The digest is the same whoever reads: the driver a small window, Spark's workers a large one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from binlake.lake import rowhash
from binlake.lake.rowhistory import rows_between
from binlake.lake.tables import BINLOG
from spark_jobs.context import Bounds, StageContext
from spark_jobs.lake import folded, folds, may_have, read, within

DIGEST_COLUMNS = ["commit_ts", "start_ts", "chunk", "kind", "schema_version", "job_id", "schema_state", "payload"]


@dataclass(frozen=True)
class Landed:
    """Transactions by kind, chunks above the first, payload bytes, digest of all rows."""

    dml: int
    ddls: int
    chunks: int
    bytes: int
    digest: str

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.dml + self.ddls + self.chunks


def landed(ctx: StageContext, bounds: Bounds, *, here: bool) -> Landed:
    """What is in `binlog` of `bounds`; `here`: it is small enough to be read by this process."""
    if not may_have(ctx.paths, BINLOG, f"commit_ts > {bounds.lo}"):
        return _landed((0, 0, 0, 0), (0, None, None))
    return _here(ctx, bounds) if here else _by_spark(ctx, bounds)


def _here(ctx: StageContext, bounds: Bounds) -> Landed:
    rows = rows_between(ctx.paths, BINLOG, bounds.lo, bounds.hi, DIGEST_COLUMNS)
    first = pc.equal(rows["chunk"], 0)
    dml, ddls = (_count(pc.and_(first, pc.equal(rows["kind"], kind))) for kind in ("dml", "ddl"))
    size = pc.sum(pc.binary_length(rows["payload"])).as_py() or 0
    return _landed((dml, ddls, _count(pc.invert(first)), size), rowhash.folds(rows, DIGEST_COLUMNS))


def _count(flags: pa.ChunkedArray) -> int:
    return pc.sum(flags).as_py() or 0


def _by_spark(ctx: StageContext, bounds: Bounds) -> Landed:
    rows = read(ctx.spark, ctx.paths, BINLOG).where(within(bounds.lo, bounds.hi))
    first = F.col("chunk") == 0
    counts = [
        F.count_if(first & (F.col("kind") == "dml")),
        F.count_if(first & (F.col("kind") == "ddl")),
        F.count_if(~first),
        F.coalesce(F.sum(F.length("payload")), F.lit(0)),
    ]
    found = rows.agg(*counts, *folds(rows, DIGEST_COLUMNS)).collect()[0]
    return _landed(found[:4], found[4:])


def _landed(counts: Sequence[int], folds_of: Sequence[object]) -> Landed:
    dml, ddls, chunks, size = counts
    return Landed(dml, ddls, chunks, size, folded(folds_of))
