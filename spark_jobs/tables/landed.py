"""The counts and the digest of a window's rows in `binlog`, which its manifest seals.

One function over Arrow counts and digests; the driver calls it for rows in its memory, Spark's workers for others.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base import rowhash
from binlake.base.lakecolumns import Binlog
from binlake.base.rowhash import Fold
from binlake.lake.rowhistory import read_rows
from binlake.lake.tables import BINLOG
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.lake import (
    FOLD_COLUMNS,
    Rows,
    build_local_table,
    collect_rows,
    commit_ts_predicate,
    decode_folds,
    encode_fold,
    map_rows,
    may_have_rows,
    read_table,
)

DIGEST_COLUMNS = [
    Binlog.COMMIT_TS,
    Binlog.START_TS,
    Binlog.CHUNK,
    Binlog.KIND,
    Binlog.SCHEMA_VERSION,
    Binlog.JOB_ID,
    Binlog.SCHEMA_STATE,
    Binlog.PAYLOAD,
]
_PART = f"dml BIGINT, ddls BIGINT, chunks BIGINT, bytes BIGINT, {FOLD_COLUMNS}"


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
        return rowhash.compute_digest(self.fold)


NONE = Landed(0, 0, 0, 0, rowhash.merge_folds([]))


def read_landed(ctx: StageContext, bounds: Bounds, *, small: bool) -> Landed:
    """Count and digest the rows of `bounds` in `binlog`; `small`: this process can read them itself."""
    if not may_have_rows(ctx.paths, BINLOG, f"{Binlog.COMMIT_TS} > {bounds.lo}"):
        return NONE
    if small:
        return measure_landed(read_rows(ctx.paths, BINLOG, bounds.lo, bounds.hi, DIGEST_COLUMNS))
    return measure_landed(read_table(ctx.spark, ctx.paths, BINLOG).where(commit_ts_predicate(bounds.lo, bounds.hi)))


def measure_landed(rows: Rows) -> Landed:
    """Count and digest `rows` of `binlog`."""
    parts = collect_rows(map_rows(rows.select(DIGEST_COLUMNS), _measure_part, _PART))
    dml, ddls, chunks, size = (int(pc.sum(parts[name]).as_py() or 0) for name in ("dml", "ddls", "chunks", "bytes"))
    return Landed(dml, ddls, chunks, size, rowhash.merge_folds(decode_folds(parts)))


def _measure_part(rows: pa.Table) -> pa.Table:
    first = pc.equal(rows[Binlog.CHUNK], 0)
    dml, ddls = (_count_true(pc.and_(first, pc.equal(rows[Binlog.KIND], kind))) for kind in ("dml", "ddl"))
    size = pc.sum(pc.binary_length(rows[Binlog.PAYLOAD])).as_py() or 0
    fold = rowhash.fold(rowhash.hash_rows(rows, DIGEST_COLUMNS))
    return build_local_table([(dml, ddls, _count_true(pc.invert(first)), size, *encode_fold(fold))], _PART)


def _count_true(flags: pa.ChunkedArray) -> int:
    return pc.sum(flags).as_py() or 0
