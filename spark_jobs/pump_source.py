"""Spark's way to the pumps: one partition a pump, each pulled over (lo, hi] until its own proof.

A partition ends at the first entity with commit_ts >= hi: the stream is ordered and bounded by the pump's watermark, so
that entity proves that nothing at or below hi is missing (hazards R-48). The proof comes out as a row of kind `proof`;
fakes otherwise leave no row. A partition reads the network: land keeps its output and works on that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError
from pyspark.sql import DataFrame, SparkSession

from binlake.pumpclient import PumpReader
from binlake.rpc import Tls
from binlake.wire import binlog_pb2

CHUNK_BYTES = 64 << 20
BATCH_BYTES = 8 << 20
BATCH_ROWS = 20_000

SCHEMA_DDL = (
    "commit_ts BIGINT, start_ts BIGINT, chunk INT, pump STRING, kind STRING, schema_version BIGINT, job_id BIGINT, "
    "schema_state INT, query STRING, content STRING, payload BINARY"
)
ARROW_SCHEMA = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("chunk", pa.int32()),
        ("pump", pa.string()),
        ("kind", pa.string()),
        ("schema_version", pa.int64()),
        ("job_id", pa.int64()),
        ("schema_state", pa.int32()),
        ("query", pa.string()),
        ("content", pa.string()),
        ("payload", pa.binary()),
    ]
)


@dataclass(frozen=True)
class PumpPull:
    """Pulls the pump of each row in the workers; `pumps` are (node id, host), a row's `id` their place.

    A function over rows, not a Python data source: that starts a fresh interpreter twice in the planning of each read,
    several seconds a window, while these run in the workers that merge uses too.
    """

    pumps: tuple[tuple[str, str], ...]
    cluster_id: int
    lo: int
    hi: int
    timeout_s: float
    tls: Tls | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """One partition a pump, with the columns of `SCHEMA_DDL`."""
        places = spark.range(0, len(self.pumps), 1, max(len(self.pumps), 1))
        return places.mapInArrow(self, SCHEMA_DDL)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches of all pumps named by `id`. Raises SourceUnavailable, LostRange, WireError."""
        for batch in batches:
            for place in batch.column("id").to_pylist():
                yield from self.of(place)

    def of(self, place: int) -> Iterator[pa.RecordBatch]:
        """The batches of the pump at `place`. Raises SourceUnavailable, LostRange, WireError."""
        node_id, host = self.pumps[place]
        return pull_batches(node_id, host, self.cluster_id, self.lo, self.hi, self.timeout_s, self.tls)


def pull_batches(
    node_id: str, host: str, cluster_id: int, lo: int, hi: int, timeout_s: float, tls: Tls | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows of one pump over (lo, hi] in commit_ts order, as batches bounded by bytes.

    Raises SourceUnavailable, LostRange, WireError.
    """
    rows: list[tuple[Any, ...]] = []
    size = 0
    reader = PumpReader(host, cluster_id, timeout_s=timeout_s, tls=tls)
    for commit_ts, start_ts, payload in reader.pull(lo, until_ts=hi):
        own = _rows(node_id, commit_ts, start_ts, payload) if commit_ts <= hi and commit_ts != start_ts else ()
        for row in own:
            rows.append(row)
            size += len(row[-1])
            # Inside a transaction, too: a column of a batch holds less than 2 GiB.
            if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
                yield _batch(rows)
                rows, size = [], 0
        if commit_ts >= hi:
            rows.append(_proof(node_id, commit_ts, start_ts))
    yield _batch(rows)


def _rows(pump: str, commit_ts: int, start_ts: int, payload: bytes) -> Iterator[tuple[Any, ...]]:
    binlog, version = _parsed(payload)
    kind = "ddl" if binlog.ddl_job_id > 0 else "dml"
    query = binlog.ddl_query.decode("utf-8", "replace") if kind == "ddl" else None
    content = _content(binlog) if version is not None else _digest(payload)
    head = (pump, kind, version or 0, binlog.ddl_job_id, binlog.ddl_schema_state, query, content)
    for number, at in enumerate(range(0, max(len(payload), 1), CHUNK_BYTES)):
        yield (commit_ts, start_ts, number, *head, payload[at : at + CHUNK_BYTES])


def _parsed(payload: bytes) -> tuple[binlog_pb2.Binlog, int | None]:
    """The binlog and its schema version; None: damaged. It lands as it is, and merge tells, where the configured list
    of transactions to ignore can let it pass; refused here, it would stop every later window too."""
    binlog = binlog_pb2.Binlog()
    try:
        binlog.ParseFromString(payload)
        return binlog, binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value).schema_version
    except DecodeError:
        return binlog, None


def _content(binlog: binlog_pb2.Binlog) -> str:
    """What must be equal when two pumps hold one transaction: all but prewrite_key (invariant 4)."""
    state = f"{binlog.start_ts},{binlog.commit_ts},{binlog.ddl_job_id},{binlog.ddl_schema_state}".encode()
    return _digest(state, binlog.prewrite_value, binlog.ddl_query)


def _digest(*parts: bytes) -> str:
    return hashlib.blake2b(b"".join(len(part).to_bytes(8, "big") + part for part in parts), digest_size=16).hexdigest()


def _proof(pump: str, commit_ts: int, start_ts: int) -> tuple[Any, ...]:
    return (commit_ts, start_ts, 0, pump, "proof", 0, 0, 0, None, "", b"")


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)],
        schema=ARROW_SCHEMA,
    )
