"""A transaction that `binlog` holds in chunks: each is read where it is needed, so no more than a few are in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from binlake.base.lakecolumns import Binlog
from binlake.errors import WireError
from binlake.lake.payloads import COLUMNS, join_chunks
from binlake.spark_jobs.engine.rows import Rows

PIECE_BYTES = 8 << 20
"""Bytes of a piece; chunks of older versions have 64 MiB."""
_PLACES = (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.CHUNK)


class ChunkedPayload:
    """The payload of the transaction `commit_ts` among `rows` of `binlog`. Raises WireError if a chunk is missing."""

    def __init__(self, rows: Sequence[Rows], commit_ts: int) -> None:
        self.commit_ts = commit_ts
        self.start_ts = 0
        self._rows = rows
        self._places: dict[int, Rows] = {}
        self._sizes: dict[int, int] = {}
        for run in (run for one in rows for run in one.list_runs()):
            if run.least <= commit_ts <= run.greatest:
                for batch in run.rows.read(_PLACES):
                    self._note_places(batch, run.rows)
        if sorted(self._places) != list(range(len(self._places))) or not self._places:
            raise WireError("chunks of a transaction are missing", where={"commit_ts": commit_ts})

    def open_pieces(self, begin: int) -> Iterator[bytes]:
        """The bytes from offset `begin` on, in pieces of at most PIECE_BYTES."""
        at = 0
        for number in range(len(self._places)):
            if number in self._sizes and at + self._sizes[number] <= begin:
                at += self._sizes[number]
                continue
            chunk = self._read_chunk(number)
            for first in range(max(begin - at, 0), len(chunk), PIECE_BYTES):
                yield chunk.slice(first, min(PIECE_BYTES, len(chunk) - first)).to_pybytes()
            at += len(chunk)

    def join(self) -> pa.RecordBatch:
        """The whole payload, as `join_chunks`."""
        return join_chunks((batch for rows in self._rows for batch in rows.read(COLUMNS)), self.commit_ts)

    def _note_places(self, batch: pa.RecordBatch, rows: Rows) -> None:
        own = np.asarray(batch.column(Binlog.COMMIT_TS)) == self.commit_ts
        for place in np.flatnonzero(own).tolist():
            self._places[batch.column(Binlog.CHUNK)[place].as_py()] = rows
            self.start_ts = batch.column(Binlog.START_TS)[place].as_py()

    def _read_chunk(self, number: int) -> pa.Buffer:
        for batch in self._places[number].read((*_PLACES, Binlog.PAYLOAD)):
            own = np.asarray(batch.column(Binlog.COMMIT_TS)) == self.commit_ts
            own &= np.asarray(batch.column(Binlog.CHUNK)) == number
            for place in np.flatnonzero(own).tolist():
                chunk = batch.column(Binlog.PAYLOAD)[place].as_buffer()
                self._sizes[number] = len(chunk)
                return chunk
        raise WireError("a chunk of a transaction is missing", where={"commit_ts": self.commit_ts, "chunk": number})
