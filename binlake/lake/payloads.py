"""Which payloads of landed transactions merge decodes, and how chunks become one payload again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Binlog

COLUMNS = (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.CHUNK, Binlog.KIND, Binlog.PAYLOAD)
"""The columns of `binlog` that are needed."""
_READ = [Binlog.COMMIT_TS, Binlog.START_TS, Binlog.PAYLOAD]


@dataclass(frozen=True)
class PayloadRange:
    """The row changes, without DDL, with lo < commit_ts <= hi and a commit_ts not in `without`.

    `chunked`: the commit_ts of transactions stored in chunks, which are joined one by one.
    """

    lo: int
    hi: int
    without: frozenset[int] = frozenset()
    chunked: frozenset[int] = frozenset()

    @property
    def joined(self) -> list[int]:
        """The commit_ts of the transactions whose chunks are to be joined."""
        return sorted(ts for ts in self.chunked - self.without if self.lo < ts <= self.hi)

    def select_wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """(commit_ts, start_ts, payload) of the rows of `batch` (COLUMNS) that are in the range and not in chunks."""
        commit_ts = np.asarray(batch.column(Binlog.COMMIT_TS))
        wanted = (commit_ts > self.lo) & (commit_ts <= self.hi)
        wanted &= np.asarray(pc.equal(batch.column(Binlog.KIND), "dml"))
        if self.without or self.chunked:
            wanted &= ~np.isin(commit_ts, list(self.without | self.chunked))
        selected = batch.select(_READ)
        return selected if wanted.all() else selected.filter(pa.array(wanted))


def join_chunks(batches: Iterable[pa.RecordBatch], commit_ts: int) -> pa.RecordBatch:
    """(commit_ts, start_ts, payload) of one transaction from its chunks among `batches` (COLUMNS), in any order."""
    chunks = [batch.filter(pc.equal(batch.column(Binlog.COMMIT_TS), commit_ts)) for batch in batches]
    rows = pa.Table.from_batches(chunks).sort_by(Binlog.CHUNK)
    payload = b"".join(rows[Binlog.PAYLOAD].to_pylist())
    return (
        rows.slice(0, 1).select(_READ).set_column(2, Binlog.PAYLOAD, pa.array([payload], pa.binary())).to_batches()[0]
    )
