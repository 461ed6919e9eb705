"""`make bench-feeder`: rows/s of CPU that a feeder reads from a MySQL or MariaDB log and encodes as TiDB's rows.

The rows are real: they are written to a private server, 1,000 or one a transaction, and the feeder's own reader reads
them from its log. `encoded` is the encoding of a batch of transactions as prewrite values, compared with row by row;
`both` is reading and encoding together. Then the whole feeder process is measured, from the log to commits on a pump,
compared with the server's own tool on the same log; and the lag under 5,000 transactions a second. Compare ratios,
because absolute figures depend on the machine.
"""

from __future__ import annotations

import logging
import random
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import structlog
from bench_decode import measure_best_rate
from decode_load import SHAPES, DrawnColumn, Row, build_table
from feeder_whole import measure_lags_of_paced_load, publish_all
from server_tools import run_client

from binlake.mysqlbinlog.model import BinlogPosition, RowsEvent
from binlake.mysqlbinlog.rowimage import encode_transactions
from binlake.mysqlbinlog.rowimage.plain import encode_rows
from binlake.mysqlbinlog.rowimage.shape import derive_shape
from binlake.pump_service.feeder.connection import open_log
from binlake.pump_service.feeder.server import connect, read_log_end
from binlake.pump_service.feeder.settings import SourceFile
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from deploy.local.mariadb import MariaDb
from deploy.local.mysql import MySql

ROWS = {"narrow": 60_000, "wide": 10_000, "text-heavy": 15_000}
BULK, SINGLE = 1000, 1
_BATCH = 1000
"""Transactions that a feeder encodes together."""
_BATCH_BYTES = 8 << 20
_DISTINCT = 1000
_PLAIN_SHARE = 8
_SERVER_ID = 4_000_000
_RATE, _PACED_S = 5_000, 20.0
_DUMPS = {"as text to /dev/null": (), "as bytes to a file": ("--raw",)}

Batches = list[list[Collection[RowsEvent]]]


def main() -> int:
    """Print a line for each server, shape and transaction size."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for server in (MariaDb, MySql):
        with server(options=server.list_source_options()) as source:
            for shape, columns in SHAPES.items():
                for in_each in (BULK, SINGLE):
                    _measure_case(source, shape, columns, in_each)
    with MariaDb(options=MariaDb.list_source_options()) as source:
        for in_each in (BULK, SINGLE):
            _measure_whole_case(source, in_each)
    with MariaDb(options=MariaDb.list_source_options()) as source:
        _measure_paced_case(source)
    return 0


def _measure_paced_case(server: MariaDb) -> None:
    lags = sorted(measure_lags_of_paced_load(server, _RATE, _PACED_S))
    print(
        f"{server.name:<8} {_RATE:,} transactions a second of 1 row, {_PACED_S:g} s: lag of the feeder:"
        f" median {lags[len(lags) // 2]:.2f} s, 99th percentile {lags[len(lags) * 99 // 100]:.2f} s,"
        f" maximum {lags[-1]:.2f} s",
        flush=True,
    )


def _measure_whole_case(server: MariaDb, in_each: int) -> None:
    shape, columns = next(iter(SHAPES.items()))
    table, rows = build_table(columns), ROWS[shape.split()[0]] * (4 if in_each > 1 else 1)
    taken = publish_all(server, lambda: _write(server, table, columns, rows, in_each))
    floors = {how: _dump_tool(server, rows, *options) for how, options in _DUMPS.items()}
    print(
        f"{server.name:<8} {shape:<20} {in_each:>4} rows/txn  from the log to commits on a pump"
        f" {rows / taken.cpu_s:>9,.0f} rows/s of the feeder's CPU ({taken.cpu_s / rows * 1e6:.1f} us a row),"
        f" {rows / taken.wall_s:>9,.0f} by the clock;"
        f" mariadb-binlog: {', '.join(f'{rate:,.0f} {how}' for how, rate in floors.items())}",
        flush=True,
    )


def _dump_tool(server: MariaDb, rows: int, *options: str) -> float:
    """Rows/s of CPU of the server's own tool on the last log."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        last = cursor.fetchall()[-1][0]
    at = ("--read-from-remote-server", f"--host={server.host}", f"--port={server.port}", "--user=root")
    with tempfile.TemporaryDirectory(prefix="binlake-bench-dump-") as folder:
        return rows / run_client(["mariadb-binlog", "--no-defaults", *at, *options, last], Path(folder)).cpu_s


def _measure_case(server: MariaDb, shape: str, columns: list[DrawnColumn], in_each: int) -> None:
    table, rows = build_table(columns), ROWS[shape.split()[0]]
    source = SourceFile.model_validate({"name": "s1", "host": server.host, "port": server.port, "user": server.user})
    since = _end_of(source)
    _write(server, table, columns, rows, in_each)
    batches, reading = _read(source, since, _end_of(source))
    rate = measure_best_rate(lambda: _encode(batches, table, rows), 5)
    plain = _measure_plain_rate(batches[: max(1, len(batches) // _PLAIN_SHARE)], table)
    both = 1 / (1 / rate + reading / rows)
    print(
        f"{server.name:<8} {shape:<20} {in_each:>4} rows/txn  encoded {rate:>9,.0f} rows/s"
        f"  one by one {plain:>7,.0f} ({rate / plain:4.1f} x)  read {rows / reading:>9,.0f}  both {both:>9,.0f}",
        flush=True,
    )


def _end_of(source: SourceFile) -> BinlogPosition:
    link = connect(source)
    try:
        return read_log_end(link)
    finally:
        link.close()


def _write(server: MariaDb, table: TableDef, columns: list[DrawnColumn], rows: int, in_each: int) -> None:
    draw = random.Random(1)
    texts = [_format_literals({c.name: c.draw_text(draw) for c in columns}, columns) for _ in range(_DISTINCT)]
    types = ", ".join(f"`{c.name}` {c.type_text}" for c in table.columns)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL sync_binlog = 0, innodb_flush_log_at_trx_commit = 0")
        cursor.execute("CREATE DATABASE IF NOT EXISTS bench")
        cursor.execute("DROP TABLE IF EXISTS bench.t")
        cursor.execute(f"CREATE TABLE bench.t ({types}, PRIMARY KEY (id))")
        cursor.execute("FLUSH BINARY LOGS")
        for first in range(0, rows, in_each):
            values = ",".join(f"({n},{texts[n % _DISTINCT]})" for n in range(first, first + in_each))
            cursor.execute(f"INSERT INTO bench.t VALUES {values}")


def _format_literals(row: Row, columns: list[DrawnColumn]) -> str:
    """All values except the key's."""
    return ",".join(_format_literal(column, row[column.name]) for column in columns if column.name != "id")


def _format_literal(column: DrawnColumn, text: str | None) -> str:
    if text is None:
        return "NULL"
    return f"X'{text}'" if column.tp == t.STRING else f"'{text}'"


def _read(source: SourceFile, since: BinlogPosition, end: BinlogPosition) -> tuple[Batches, float]:
    """The log's transactions from `since` to `end` in batches, and the CPU seconds that reading them took."""
    log = open_log(source, _SERVER_ID, since)
    batches: Batches = []
    began = time.process_time()
    while (log.position.file, log.position.offset) < (end.file, end.offset):
        batches.append([one.changes for one in log.read(_BATCH, _BATCH_BYTES, 30.0) if one.changes])
    seconds = time.process_time() - began
    log.end()
    return [batch for batch in batches if batch], seconds


def _encode(batches: Batches, table: TableDef, rows: int) -> int:
    values = [value for batch in batches for value in encode_transactions(batch, lambda _: table, 1)]
    assert all(values)
    return rows


def _measure_plain_rate(batches: Batches, table: TableDef) -> float:
    """Rows/s of CPU of the encoder for single rows."""
    shapes = [(event, derive_shape(event, table)) for batch in batches for changes in batch for event in changes]
    return measure_best_rate(lambda: sum(len(encode_rows(event, shape, 1)) for event, shape in shapes), 2)


if __name__ == "__main__":
    raise SystemExit(main())
