"""Reads one range of a table into files of `binlog`: complete transactions of inserts, as a pump would deliver them.

The files become part of the table only when the window that holds them is sealed. `read_range` can run anywhere that
can write the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from binlake import tso
from binlake.base import rowhash
from binlake.base.lakecolumns import Binlog
from binlake.base.rowhash import Fold
from binlake.errors import Permanent
from binlake.lake.baseload import LoadedRange
from binlake.lake.parts import write_parts
from binlake.lake.tables import BINLOG, parse_schema
from binlake.mysqlbinlog.rowimage.transactions import encode_inserts
from binlake.mysqlbinlog.tablerows.link import Link, query_rows
from binlake.mysqlbinlog.tablerows.rowblocks import BlockWriter, group_into_blocks
from binlake.mysqlbinlog.tablerows.rowtexts import select_columns
from binlake.rows.codec.encode import encode_commit_binlog
from binlake.spark_jobs.bootstrap.ranges import BootstrapRange
from binlake.spark_jobs.tables.landed import DIGEST_COLUMNS
from binlake.statements.literal import quote_qualified_name

PUMP = "full load"
"""The value of the column `pump`, in place of a pump's node id."""
MOST_ROWS, MOST_BYTES = 10_000, 1 << 20
"""Limits of one transaction: the size of an ordinary transaction at a source."""
_BATCH_BYTES = 32 << 20
_SCHEMA = parse_schema(BINLOG.build_spark_schema())


@dataclass
class _RangeTotals:
    """Totals of what has been written of a range so far."""

    rows: int = 0
    transactions: int = 0
    bytes: int = 0
    folds: list[Fold] = field(default_factory=list)


def read_range(link: Link, given: BootstrapRange, version: int, folder: str) -> LoadedRange:
    """Write the rows of `given` into `folder`, that of the table `binlog`, with the schema version `version`.

    Raises pymysql's errors, SourceUnavailable, Permanent, OSError; after an error no file is left.
    """
    counted = _RangeTotals()
    parts = write_parts(folder, BINLOG, _read_batches(link, given, version, counted))
    definition = given.table.definition
    return LoadedRange(
        definition.id, definition.db, definition.name, given.low, given.high, given.first_ts, given.last_ts,
        counted.rows, counted.transactions, counted.bytes, rowhash.merge_folds(counted.folds), tuple(parts),
    )  # fmt: skip


def build_binlog_table(rows: list[tuple[int, int, bytes]], kind: str, version: int) -> pa.Table:
    """Rows of `binlog` from (commit_ts, job id, payload); each is one complete transaction or DDL."""
    count = len(rows)
    columns = {
        Binlog.COMMIT_TS: [ts for ts, _, _ in rows],
        Binlog.START_TS: [ts - 1 for ts, _, _ in rows],
        Binlog.CHUNK: [0] * count,
        Binlog.COMMIT_DATE: [tso.to_datetime(ts).date() for ts, _, _ in rows],
        Binlog.PUMP: [PUMP] * count,
        Binlog.KIND: [kind] * count,
        Binlog.SCHEMA_VERSION: [version] * count,
        Binlog.JOB_ID: [job_id for _, job_id, _ in rows],
        Binlog.SCHEMA_STATE: [5 if job_id else 0 for _, job_id, _ in rows],
        Binlog.PAYLOAD: [payload for _, _, payload in rows],
    }
    return pa.Table.from_arrays([pa.array(columns[kind.name], kind.type) for kind in _SCHEMA], schema=_SCHEMA)


def _read_batches(link: Link, given: BootstrapRange, version: int, counted: _RangeTotals) -> Iterator[pa.Table]:
    gathered: list[tuple[int, int, bytes]] = []
    size = 0
    for commit_ts, payload in _read_transactions(link, given, version, counted):
        gathered.append((commit_ts, 0, payload))
        size += len(payload)
        if size >= _BATCH_BYTES:
            yield _build_table(gathered, version, counted)
            gathered, size = [], 0
    if gathered:
        yield _build_table(gathered, version, counted)


def _build_table(rows: list[tuple[int, int, bytes]], version: int, counted: _RangeTotals) -> pa.Table:
    table = build_binlog_table(rows, "dml", version)
    counted.transactions += len(rows)
    counted.bytes += sum(len(payload) for _, _, payload in rows)
    counted.folds.append(rowhash.fold(rowhash.hash_rows(table, DIGEST_COLUMNS)))
    return table


def _read_transactions(
    link: Link, given: BootstrapRange, version: int, counted: _RangeTotals
) -> Iterator[tuple[int, bytes]]:
    """(commit_ts, payload) of each transaction of the range."""
    definition, commit_ts = given.table.definition, given.first_ts
    writer = BlockWriter(definition)
    where = f" WHERE {given.where}" if given.where else ""
    query = f"SELECT {select_columns(definition)} FROM {quote_qualified_name(*given.table.name)}{where}"
    for packets in group_into_blocks(query_rows(link, query)):
        counted.rows += len(packets)
        for rows, entries in writer.write(packets).split_into_parts(MOST_ROWS, MOST_BYTES):
            if commit_ts > given.last_ts:
                raise Permanent(
                    "a range has more transactions than commit_ts reserved for it",
                    where={"table": ".".join(given.table.name)},
                    hint="give the table a primary key whose columns SQL can order, or load it by other means",
                )
            value = encode_inserts(version, definition.id, entries, rows)
            yield commit_ts, encode_commit_binlog(commit_ts - 1, commit_ts, b"", value)
            commit_ts += 1
