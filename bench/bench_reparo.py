"""`make bench-files`, the way back: `binlake reparo` of inserts of one row into MariaDB, beside its own texts, ready.

The floor runs the same multi-row REPLACE texts over one connection into the emptied table. CPU of both processes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil
import pyarrow as pa

from binlake.base.filestore import LocalStore
from binlake.binlogfile.framing import pack_record
from binlake.binlogfile.names import file_name
from binlake.reparo import statements
from binlake.reparo.restore import restore
from binlake.reparo.settings import ReparoSettings
from binlake.rows.codec import datum as d
from binlake.statements import StatementBatch
from binlake.wire import pb_binlog_pb2 as pb
from deploy.local.mariadb import MariaDb

ROWS = 100_000
CREATE = "CREATE TABLE sb.t (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k))"


def main() -> int:
    """Rows a second of the clock, and CPU a row of this process and the server."""
    pa.set_cpu_count(1)
    with MariaDb() as server, tempfile.TemporaryDirectory(prefix="binlake-back-") as name:
        folder = Path(name)
        write_files(folder)
        make_table(server)
        place = {"host": server.host, "port": server.port, "user": server.user}
        settings = ReparoSettings.model_validate(
            {"data-dir": name, "dest-type": "mariadb", "dest-db": place, "safe-mode": True}
        )
        texts: list[str] = []
        with_texts = keep_texts(texts)
        back = measure(server, lambda: restore(settings, LocalStore(folder)))
        with_texts()
        make_table(server)
        floor = measure(server, lambda: run_ready(server, texts))
    for label, (seconds, own, theirs) in (("reparo", back), ("ready REPLACE", floor)):
        per = 1e6 / ROWS
        print(f"{label:<14} {ROWS / seconds:>9,.0f} rows/s   CPU us a row {own * per:.2f}, database {theirs * per:.2f}")
    return 0


def write_files(folder: Path) -> None:
    """sysbench's table, an INSERT a transaction."""
    heads = [pb.Column(name=name, tp=bytes([tp]), mysql_type=kind) for name, tp, kind in
             (("id", 3, "int"), ("k", 3, "int"), ("c", 254, "char"), ("pad", 254, "char"))]  # fmt: skip
    records = bytearray()
    for number in range(ROWS):
        row = [d.write_int(number), d.write_int(number * 7919 % ROWS), d.write_bytes(b"%011d-" % number * 9)]
        row.append(d.write_bytes(b"%011d-" % number * 4))
        event = pb.Event(schema_name="sb", table_name="t", tp=pb.Insert)
        for head, datum in zip(heads, row, strict=True):
            head.value = datum
            event.row.append(head.SerializeToString())
        records += pack_record(
            pb.Binlog(tp=pb.DML, commit_ts=1000 + number, dml_data={"events": [event]}).SerializeToString()
        )
    (folder / file_name(0, 1000)).write_bytes(records)


def keep_texts(texts: list[str]) -> Callable[[], None]:
    """The statements of windows go to `texts` as they are applied, until what is returned is called."""
    kept = statements.RowStatements.batches

    def batches(self: statements.RowStatements, segment: int, phase: int) -> Iterator[StatementBatch]:
        for batch in kept(self, segment, phase):
            texts.extend(batch.sql)
            yield batch

    def give_back() -> None:
        statements.RowStatements.batches = kept  # type: ignore[method-assign]

    statements.RowStatements.batches = batches  # type: ignore[method-assign]
    return give_back


def make_table(server: MariaDb) -> None:
    """Empty, and nobody has a progress."""
    with server.connect() as link, link.cursor() as cursor:
        for name in ("sb", "binlake_reparo"):
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute("CREATE DATABASE sb COLLATE utf8mb4_bin")
        cursor.execute(CREATE)


def run_ready(server: MariaDb, texts: list[str]) -> None:
    """All in one transaction, as a window of mode atomic."""
    with server.connect(autocommit=False) as link, link.cursor() as cursor:
        for text in texts:
            cursor.execute(text)
        link.commit()


def measure(server: MariaDb, work: Callable[[], object]) -> tuple[float, float, float]:
    """(seconds, CPU seconds of this process, of the server)."""
    process = psutil.Process(server.pid)
    began, own, theirs = time.perf_counter(), time.process_time(), sum(process.cpu_times()[:2])
    work()
    return time.perf_counter() - began, time.process_time() - own, sum(process.cpu_times()[:2]) - theirs


if __name__ == "__main__":
    raise SystemExit(main())
