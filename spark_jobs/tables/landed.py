"""The counts and the digest of a window's rows in `binlog`, which its manifest seals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base import rowhash
from binlake.base.lakecolumns import Binlog
from binlake.base.rowhash import Fold
from binlake.lake.tables import BINLOG
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.lakerows import list_history_rows
from binlake.spark_jobs.engine.rows import Rows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import commit_ts_predicate, may_have_rows

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

    @classmethod
    def sum_parts(cls, parts: Iterable[Landed]) -> Landed:
        """The total of all `parts`."""
        every = list(parts)
        dml, ddls, chunks, size = (
            sum(getattr(part, name) for part in every) for name in ("dml", "ddls", "chunks", "bytes")
        )
        return cls(dml, ddls, chunks, size, rowhash.merge_folds(part.fold for part in every))


NONE = Landed(0, 0, 0, 0, rowhash.merge_folds([]))


def read_landed(ctx: StageContext, engine: Engine, bounds: Bounds) -> Landed:
    """Count and digest the rows of `bounds` in `binlog`."""
    if not may_have_rows(ctx.paths, BINLOG, commit_ts_predicate(bounds.lo, bounds.hi)):
        return NONE
    parts = list_history_rows(ctx.paths, BINLOG, bounds.lo, bounds.hi, engine.task_bytes)
    return Landed.sum_parts(engine.run(_measure_rows, parts))


def _measure_rows(rows: Rows) -> Landed:
    return Landed.sum_parts(measure_landed(pa.Table.from_batches([batch])) for batch in rows.read(DIGEST_COLUMNS))


def measure_landed(rows: pa.Table) -> Landed:
    """Count and digest `rows` of `binlog`."""
    first = pc.equal(rows[Binlog.CHUNK], 0)
    dml, ddls = (_count_true(pc.and_(first, pc.equal(rows[Binlog.KIND], kind))) for kind in ("dml", "ddl"))
    size = pc.sum(pc.binary_length(rows[Binlog.PAYLOAD])).as_py() or 0
    fold = rowhash.fold(rowhash.hash_rows(rows, DIGEST_COLUMNS))
    return Landed(dml, ddls, _count_true(pc.invert(first)), size, fold)


def _count_true(flags: pa.ChunkedArray) -> int:
    return pc.sum(flags).as_py() or 0
