"""Reads a pump's binlogs of (lo, hi] as Arrow: blocks of the stream become columns, without an object for each binlog.

The stream is ordered and bounded by the pump's watermark, so the entity that ends a pull proves that nothing below it
is missing (hazards R-48): the first one at or above hi.
The proof is returned as a row of kind `proof`; other fake binlogs leave no row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from binlake.cluster.pumpclient import PumpReader, RangeSize
from binlake.common.lakecolumns import Binlog
from binlake.lake.tables import parse_schema
from binlake.rows.codec.envelopes import Envelopes, parse_binlog, read_envelopes
from binlake.rows.codec.lanes import PAD
from binlake.rpc import Tls
from binlake.spark_jobs.land.binlogfiles import CHUNK_BYTES, LARGE_BYTES, LargeFiles, LargeHead, cut_evenly
from binlake.wire.blocks import BinlogBlock, BinlogPart, Ints, build_block, cut_into_parts

BATCH_BYTES = 8 << 20
BATCH_ROWS = 20_000

SCHEMA_DDL = (
    "commit_ts BIGINT, start_ts BIGINT, chunk INT, pump STRING, kind STRING, schema_version BIGINT, job_id BIGINT, "
    "schema_state INT, query STRING, content STRING, payload BINARY, written BIGINT"
)
"""`written`: bytes of the payload of a large transaction, which is in a file already and not in the row (LargeFiles).

`content` is set only for such a transaction; others get it (`digest_content`) if two pumps hold them."""
ARROW_SCHEMA = parse_schema(SCHEMA_DDL)


@dataclass(frozen=True)
class PumpPull:
    """What to pull from which pumps; `pumps` are (node id, host)."""

    pumps: tuple[tuple[str, str], ...]
    cluster_id: int
    lo: int
    hi: int
    timeout_s: float
    tls: Tls | None = None

    def measure_pump(self, place: int, part_bytes: int) -> RangeSize | None:
        """About what the pump with the index `place` has; None if it cannot tell. Raises SourceUnavailable."""
        host = self.pumps[place][1]
        reader = PumpReader(host, self.cluster_id, timeout_s=self.timeout_s, tls=self.tls)
        return reader.measure_range(self.lo, self.hi, part_bytes)

    def pull_pump(self, place: int, files: LargeFiles) -> Iterator[pa.RecordBatch]:
        """The batches of the pump with the index `place`; `files` gets its large transactions.

        Raises SourceUnavailable, LostRange, WireError, OSError.
        """
        node_id, host = self.pumps[place]
        reader = PumpReader(host, self.cluster_id, timeout_s=self.timeout_s, tls=self.tls)
        return pull_batches(node_id, reader, self.lo, self.hi, files)


def pull_batches(node_id: str, reader: PumpReader, lo: int, hi: int, files: LargeFiles) -> Iterator[pa.RecordBatch]:
    """Rows of one pump in (lo, hi] in commit_ts order, as batches of bounded size; large transactions go to `files`.

    Raises SourceUnavailable, LostRange, WireError, OSError.
    """
    gathered: list[BinlogBlock] = []
    size = rows = last = 0
    with closing(reader.pull_parts(lo, hi)) as stream:
        for first, rest in _separate_large(stream):
            if isinstance(first, BinlogPart):
                last = first.commit_ts
                if last > hi:
                    break  # its first part proves what its last one would
                yield from _build_batches(node_id, gathered, hi)
                yield from _write_large(node_id, first, rest, files)
                gathered, size, rows = [], 0, 0
                continue
            last = int(first.commit_ts[-1])
            gathered.append(first)
            size, rows = size + len(first.data), rows + len(first.commit_ts)
            if size >= BATCH_BYTES or rows >= BATCH_ROWS:
                yield from _build_batches(node_id, gathered, hi)
                gathered, size, rows = [], 0, 0
    yield from _build_batches(node_id, gathered, hi)
    yield build_proof(node_id, last)


def build_proof(pump: str, commit_ts: int) -> pa.RecordBatch:
    """A row which states that `pump` has delivered everything at or below `commit_ts`."""
    row = (commit_ts, commit_ts, 0, pump, "proof", 0, 0, 0, None, None, b"", None)
    return _build_record_batch([pa.array([value], field.type) for value, field in zip(row, ARROW_SCHEMA, strict=True)])


def digest_content(payload: bytes | memoryview) -> str:
    """A digest of everything except prewrite_key: equal if two pumps hold the same transaction (invariant 4)."""
    binlog, version = parse_binlog(payload)
    if version is None:
        return _digest_parts(payload)
    state = f"{binlog.start_ts},{binlog.commit_ts},{binlog.ddl_job_id},{binlog.ddl_schema_state}".encode()
    return _digest_parts(state, binlog.prewrite_value, binlog.ddl_query)


def _digest_parts(*parts: bytes | memoryview) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _separate_large(
    stream: Iterator[BinlogBlock | BinlogPart],
) -> Iterator[tuple[BinlogBlock | BinlogPart, Iterator[BinlogBlock | BinlogPart]]]:
    """Each block, or the first part of a large binlog with those that follow: the caller takes these up to its last."""
    for one in stream:
        if isinstance(one, BinlogPart):
            yield from _gather_part(one, stream)
        elif len(one.data) <= LARGE_BYTES:
            yield one, iter(())
        else:
            # From a pump that sends no parts.
            parts: Iterator[BinlogBlock | BinlogPart] = iter(cut_into_parts(one))
            for first in parts:
                assert isinstance(first, BinlogPart)
                yield from _gather_part(first, parts)


def _gather_part(
    first: BinlogPart, rest: Iterator[BinlogBlock | BinlogPart]
) -> Iterator[tuple[BinlogBlock | BinlogPart, Iterator[BinlogBlock | BinlogPart]]]:
    if first.size > LARGE_BYTES:
        yield first, rest
        return
    payload = b"".join(_iterate_data(first, rest))
    yield build_block([first.commit_ts], [first.start_ts], [payload]), iter(())


def _iterate_data(first: BinlogPart, rest: Iterator[BinlogBlock | BinlogPart]) -> Iterator[memoryview]:
    """The bytes of the binlog that begins with `first`."""
    part: BinlogBlock | BinlogPart = first
    while True:
        assert isinstance(part, BinlogPart)
        yield part.data
        if part.is_last:
            return
        part = next(rest)


def _write_large(
    pump: str, first: BinlogPart, rest: Iterator[BinlogBlock | BinlogPart], files: LargeFiles
) -> Iterator[pa.RecordBatch]:
    """The row of a large transaction, which is written; or all its chunks, if its fields are unusual."""
    head = files.write(pump, first, _iterate_data(first, rest))
    ts: tuple[Ints, Ints] = np.array([first.commit_ts], np.int64), np.array([first.start_ts], np.int64)
    if isinstance(head, LargeHead):
        none: Ints = np.zeros(1, np.int64)
        heads = Envelopes(np.array([head.version], np.int64), none, none, {})
        batch = _build_batch(pump, *ts, heads, pa.array([b""]))
        batch = batch.set_column(9, "content", pa.array([head.content], pa.string()))
        yield batch.set_column(11, "written", pa.array([head.size], pa.int64()))
        return
    heads, content = read_envelopes(pa.array([head])), digest_content(head)
    for chunk, piece in enumerate(cut_evenly(iter([memoryview(head)]), CHUNK_BYTES)):
        batch = _build_batch(pump, *ts, heads, pa.array([piece]))
        batch = batch.set_column(2, Binlog.CHUNK, pa.array([chunk], pa.int32()))
        yield batch.set_column(9, "content", pa.array([content], pa.string()))


def _build_batches(pump: str, gathered: Sequence[BinlogBlock], hi: int) -> Iterator[pa.RecordBatch]:
    """One batch of the binlogs of `gathered`; no batch if there are only fake binlogs."""
    if not gathered:
        return
    commit_ts, start_ts = (np.concatenate([block[column] for block in gathered]) for column in (0, 1))
    ends = np.concatenate([np.diff(block.ends, prepend=0) for block in gathered]).cumsum()
    payloads = _build_binaries(b"".join((*(block.data for block in gathered), PAD)), ends)
    batch = _build_batch(pump, commit_ts, start_ts, read_envelopes(payloads), payloads)
    own = (commit_ts <= hi) & (commit_ts != start_ts)
    if own.any():
        yield batch if own.all() else batch.filter(pa.array(own))


def _build_batch(pump: str, commit_ts: Ints, start_ts: Ints, heads: Envelopes, payloads: pa.Array) -> pa.RecordBatch:
    count = len(commit_ts)
    is_ddl = heads.job_id > 0
    queries = pa.nulls(count, pa.string())
    if heads.query:
        queries = pa.array([heads.query.get(row) for row in range(count)], pa.string())
    columns = [
        pa.array(commit_ts),
        pa.array(start_ts),
        pa.array(np.zeros(count, np.int32)),
        pa.repeat(pump, count),
        pa.array(np.where(is_ddl, "ddl", "dml"), pa.string()) if is_ddl.any() else pa.repeat("dml", count),
        pa.array(heads.version),
        pa.array(heads.job_id),
        pa.array(heads.state.astype(np.int32)),
        queries,
        pa.nulls(count, pa.string()),
        payloads,
        pa.nulls(count, pa.int64()),
    ]
    return _build_record_batch(columns)


def _build_binaries(data: bytes, ends: Ints) -> pa.Array:
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _build_record_batch(columns: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), schema=ARROW_SCHEMA)
