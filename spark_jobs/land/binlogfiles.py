"""The rows of a window in `binlog`: the counts and the digest that its manifest seals, and files of large ones.

A large transaction is written to a file while it is pulled: no more than a chunk of it is in memory, and a row of the
pull stands for it, without its payload. The chunks have CHUNK_BYTES, wherever the pump divides it. What a row says of a
transaction comes from the fields around its row changes (`binlake.rows.codec.envelopes`); where these are not as TiDB
writes them, the transaction is read back and takes the way of all others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common import rowhash
from binlake.common.lakecolumns import Binlog
from binlake.common.rowhash import Fold
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.store import delete_file
from binlake.lake.tables import BINLOG, parse_schema
from binlake.rows.codec.envelopes import LargeEnvelope
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import FileRows, Rows, list_history_rows, list_written_rows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import commit_ts_predicate, may_have_rows
from binlake.wire.blocks import BinlogPart

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
LARGE_BYTES = 32 << 20
"""Payload bytes above which a transaction is written in chunks."""
CHUNK_BYTES = 8 << 20
"""Payload bytes of a chunk, each of which is a row group."""
BINLOG_ARROW = parse_schema(BINLOG.build_spark_schema())
_DAY_MS = 86_400_000


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


@dataclass(frozen=True)
class WrittenTransaction:
    """A transaction in a file of `binlog` that is not committed; `rows`: its chunks, to be read."""

    commit_ts: int
    part: TablePart
    landed: Landed
    rows: FileRows


@dataclass(frozen=True)
class LargeHead:
    """What a row of a pull says of a written transaction. `content` as `digest_content`."""

    version: int
    content: str
    size: int


class PullStopped(Exception):
    """Nobody needs the rest of what is being pulled."""


class LargeFiles:
    """The large transactions that one task pulls, by pump and commit_ts; for all its threads.

    When its context ends, the files that no range has taken are deleted.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._written: dict[tuple[str, int], WrittenTransaction] = {}
        self._stopped = threading.Event()

    def __enter__(self) -> LargeFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._written.values():
            delete_file(f"{self._folder}/{one.part.path}")

    def stop(self) -> None:
        """Let threads that write end soon."""
        self._stopped.set()

    def take(self, pump: str, commit_ts: int) -> WrittenTransaction:
        """The transaction that `pump` delivered, which the caller has from now on."""
        return self._written.pop((pump, commit_ts))

    def write(self, pump: str, first: BinlogPart, data: Iterator[memoryview]) -> LargeHead | bytes:
        """Write the transaction that begins with `first`, whose bytes are `data`.

        Returns its payload instead if its fields are unusual; then nothing is left of the file. Raises what `data`
        raises, PullStopped, OSError.
        """
        reading = _Reading(pump, first)
        [part] = write_parts(self._folder, BINLOG, self._cut_into_rows(reading, data))
        [rows] = list_written_rows(self._folder, [part], first.size)
        if not reading.envelope.is_plain:
            whole = b"".join(value.as_buffer() for batch in rows.read([Binlog.PAYLOAD]) for value in batch.column(0))
            delete_file(f"{self._folder}/{part.path}")
            return whole
        landed = Landed.sum_parts(reading.landed)
        self._written[pump, first.commit_ts] = WrittenTransaction(first.commit_ts, part, landed, rows)
        return LargeHead(reading.envelope.version, reading.compute_content(), first.size)

    def _cut_into_rows(self, reading: _Reading, data: Iterator[memoryview]) -> Iterator[pa.Table]:
        for chunk in cut_evenly(data, CHUNK_BYTES):
            if self._stopped.is_set():
                raise PullStopped
            yield reading.add(chunk)


class _Reading:
    """A transaction while it is pulled."""

    def __init__(self, pump: str, first: BinlogPart) -> None:
        self.envelope = LargeEnvelope(first.size)
        self.landed: list[Landed] = []
        self._pump = pump
        self._ts = (first.commit_ts, first.start_ts)
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, chunk: bytes) -> pa.Table:
        """The next chunk, as a row of `binlog`."""
        begin = self.envelope.position
        self.envelope.add(chunk)
        if not self.landed:
            self._begin_digest()
        low, high = self.envelope.value
        self._digest.update(memoryview(chunk)[max(low - begin, 0) : max(high - begin, 0)])
        row = _build_row(self._pump, self._ts, len(self.landed), self.envelope.version, chunk)
        self.landed.append(measure_landed(row))
        return row

    def compute_content(self) -> str:
        """The digest of the whole content."""
        self._digest.update(bytes(8))  # the length of its DDL
        return self._digest.hexdigest()

    def _begin_digest(self) -> None:
        state = f"{self.envelope.start_ts},{self.envelope.commit_ts},0,0".encode()
        low, high = self.envelope.value
        self._digest.update(len(state).to_bytes(8, "big") + state + (high - low).to_bytes(8, "big"))


def cut_evenly(data: Iterator[memoryview], size: int) -> Iterator[bytes]:
    """The bytes of `data` in pieces of `size` bytes; the last one may have fewer."""
    pending: list[memoryview] = []
    have = 0
    for piece in data:
        rest = piece
        while have + len(rest) >= size:
            pending.append(rest[: size - have])
            yield b"".join(pending)
            rest, pending, have = rest[size - have :], [], 0
        if rest:
            pending.append(rest)
            have += len(rest)
    if have:
        yield b"".join(pending)


def _build_row(pump: str, ts: tuple[int, int], chunk: int, version: int, payload: bytes) -> pa.Table:
    commit_ts, start_ts = ts
    offsets = pa.py_buffer(np.array([0, len(payload)], np.int32))
    values: dict[str, object] = {
        Binlog.COMMIT_TS: [commit_ts],
        Binlog.START_TS: [start_ts],
        Binlog.CHUNK: [chunk],
        Binlog.COMMIT_DATE: pa.array([(commit_ts >> 18) // _DAY_MS], pa.int32()).cast(pa.date32()),
        Binlog.PUMP: [pump],
        Binlog.KIND: ["dml"],
        Binlog.SCHEMA_VERSION: [version],
        Binlog.JOB_ID: [0],
        Binlog.SCHEMA_STATE: [0],
        Binlog.PAYLOAD: pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(payload)]),
    }
    return pa.table({name: values[name] for name in BINLOG_ARROW.names}, schema=BINLOG_ARROW)
