"""Which payloads of landed transactions merge decodes, and how chunks become one payload again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.lakecolumns import Binlog
from binlake.rows.codec.lanes import PAD

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
    chunks = [_select_commit(batch, commit_ts) for batch in batches]
    rows = pa.Table.from_batches(chunks)
    pieces = [piece for column in rows[Binlog.PAYLOAD].chunks for piece in column]
    in_order = [pieces[number].as_buffer() for number in np.argsort(np.asarray(rows[Binlog.CHUNK])).tolist()]
    # The only copy of a payload that may have a GiB: with PAD, who decodes it makes none.
    payload = pa.py_buffer(b"".join((*in_order, PAD)))
    offsets = pa.py_buffer(np.array([0, payload.size - len(PAD)], np.int32))
    whole = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, payload])
    return rows.slice(0, 1).select(_READ).set_column(2, Binlog.PAYLOAD, whole).to_batches()[0]


def _select_commit(batch: pa.RecordBatch, commit_ts: int) -> pa.RecordBatch:
    own = np.asarray(batch.column(Binlog.COMMIT_TS)) == commit_ts
    return batch if own.all() else batch.filter(pa.array(own))
