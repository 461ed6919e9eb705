"""The Spark data source over pumps: one partition a pump, each pulled over (lo, hi] until its own proof.

A partition ends at the first entity with commit_ts >= hi: the stream is ordered and bounded by the pump's watermark, so
that entity proves that nothing at or below hi is missing (hazards R-48). The proof comes out as a row of kind `proof`;
fakes otherwise leave no row. A partition reads the network: land writes its output to staging once and works on that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from binlake.errors import WireError
from binlake.pumpclient import PumpReader
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
class PumpPartition(InputPartition):
    """One pump's part of the window."""

    node_id: str
    host: str


class PumpDataSource(DataSource):
    """`spark.read.format("binlake_pump")`; options: `pumps` (JSON [[node id, host]…]), `cluster_id`, `lo`, `hi`,
    `timeout_s`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "binlake_pump"

    def schema(self) -> str:
        """One row per chunk of a complete transaction, and one proof per pump."""
        return SCHEMA_DDL

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002 - the interface of DataSource
        """The reader of the window in the options."""
        return PumpDataSourceReader(dict(self.options))


class PumpDataSourceReader(DataSourceReader):
    """Pulls each pump once per task."""

    def __init__(self, options: dict[str, str]) -> None:
        self._pumps = [PumpPartition(node_id=node, host=host) for node, host in json.loads(options["pumps"])]
        self._cluster_id = int(options["cluster_id"])
        self._lo, self._hi = int(options["lo"]), int(options["hi"])
        self._timeout_s = float(options["timeout_s"])

    def partitions(self) -> Sequence[InputPartition]:
        """One partition a pump."""
        return self._pumps

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of the pump in commit_ts order, as Arrow batches bounded by bytes."""
        assert isinstance(partition, PumpPartition)
        yield from pull_batches(partition, self._cluster_id, self._lo, self._hi, self._timeout_s)


def pull_batches(pump: PumpPartition, cluster_id: int, lo: int, hi: int, timeout_s: float) -> Iterator[pa.RecordBatch]:
    """The batches of one pump over (lo, hi]. Raises SourceUnavailable, LostRange, WireError."""
    rows: list[tuple[object, ...]] = []
    size = 0
    reader = PumpReader(pump.host, cluster_id, timeout_s=timeout_s)
    for commit_ts, start_ts, payload in reader.pull(lo, until_ts=hi):
        if commit_ts <= hi and commit_ts != start_ts:
            rows.extend(_rows(pump.node_id, commit_ts, start_ts, payload))
            size += len(payload)
        if commit_ts >= hi:
            rows.append(_proof(pump.node_id, commit_ts, start_ts))
        if size >= BATCH_BYTES or len(rows) >= BATCH_ROWS:
            yield _batch(rows)
            rows, size = [], 0
    yield _batch(rows)


def _rows(pump: str, commit_ts: int, start_ts: int, payload: bytes) -> Iterator[tuple[object, ...]]:
    binlog = binlog_pb2.Binlog()
    try:
        binlog.ParseFromString(payload)
        value = binlog_pb2.PrewriteValue.FromString(binlog.prewrite_value)
    except Exception as error:
        where = {"pump": pump, "commit_ts": commit_ts, "start_ts": start_ts}
        hint = (
            "the pump holds a damaged record; list the commit_ts in `filter.ignore-txn-commit-ts` to go on without it"
        )
        raise WireError(f"payload is not a binlog: {error}", where=where, hint=hint) from error
    kind = "ddl" if binlog.ddl_job_id > 0 else "dml"
    query = binlog.ddl_query.decode("utf-8", "replace") if kind == "ddl" else None
    head = (pump, kind, value.schema_version, binlog.ddl_job_id, binlog.ddl_schema_state, query, _content(binlog))
    for number, at in enumerate(range(0, max(len(payload), 1), CHUNK_BYTES)):
        yield (commit_ts, start_ts, number, *head, payload[at : at + CHUNK_BYTES])


def _content(binlog: binlog_pb2.Binlog) -> str:
    """What must be equal when two pumps hold one transaction: all but prewrite_key (invariant 4)."""
    state = f"{binlog.start_ts},{binlog.commit_ts},{binlog.ddl_job_id},{binlog.ddl_schema_state}".encode()
    parts = (state, binlog.prewrite_value, binlog.ddl_query)
    return hashlib.blake2b(b"".join(len(part).to_bytes(8, "big") + part for part in parts), digest_size=16).hexdigest()


def _proof(pump: str, commit_ts: int, start_ts: int) -> tuple[object, ...]:
    return (commit_ts, start_ts, 0, pump, "proof", 0, 0, 0, None, "", b"")


def _batch(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [[] for _ in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type=field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)],
        schema=ARROW_SCHEMA,
    )
