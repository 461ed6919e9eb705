"""`make bench-files`, the restore: `binlake reparo` of single-row inserts into MariaDB, compared with its floor.

The floor runs the same multi-row REPLACE statements, already rendered, over one connection into the emptied table.
Prints the CPU of both processes.
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

from binlake.binlogfile.folder import format_file_name
from binlake.binlogfile.framing import pack_record
from binlake.common.filestore import LocalStore
from binlake.extras.reparo import statements
from binlake.extras.reparo.restore import restore
from binlake.extras.reparo.settings import ReparoSettings
from binlake.rows.codec import datum as d
from binlake.statements import StatementBatch
from binlake.wire import pb_binlog_pb2 as pb
from deploy.local.mariadb import MariaDb

ROWS = 100_000
CREATE = "CREATE TABLE sb.t (id INT PRIMARY KEY, k INT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL, KEY (k))"


def main() -> int:
    """Print rows per second, and CPU per row of this process and of the server."""
    pa.set_cpu_count(1)
    with MariaDb() as server, tempfile.TemporaryDirectory(prefix="binlake-back-") as name:
        folder = Path(name)
        write_files(folder)
        build_table(server)
        address = {"host": server.host, "port": server.port, "user": server.user}
        settings = ReparoSettings.model_validate(
            {"data-dir": name, "dest-type": "mariadb", "dest-db": address, "safe-mode": True}
        )
        texts: list[str] = []
        stop_recording = record_texts(texts)
        restored = measure(server, lambda: restore(settings, LocalStore(folder)))
        stop_recording()
        build_table(server)
        floor = measure(server, lambda: run_texts(server, texts))
    for label, (seconds, own, theirs) in (("reparo", restored), ("REPLACE only", floor)):
        per = 1e6 / ROWS
        print(f"{label:<14} {ROWS / seconds:>9,.0f} rows/s   CPU us a row {own * per:.2f}, database {theirs * per:.2f}")
    return 0


def write_files(folder: Path) -> None:
    """Write binlog files of inserts into sysbench's table, one INSERT per transaction."""
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
    (folder / format_file_name(0, 1000)).write_bytes(records)


def record_texts(texts: list[str]) -> Callable[[], None]:
    """Append each statement to `texts` when it is applied, until the returned function is called."""
    original = statements.RowStatements.read_batches

    def read_batches(self: statements.RowStatements, segment: int, phase: int) -> Iterator[StatementBatch]:
        for batch in original(self, segment, phase):
            texts.extend(batch.sql)
            yield batch

    def restore_batches() -> None:
        statements.RowStatements.read_batches = original  # type: ignore[method-assign]

    statements.RowStatements.read_batches = read_batches  # type: ignore[method-assign]
    return restore_batches


def build_table(server: MariaDb) -> None:
    """Create the table anew, empty, and drop the progress of reparo."""
    with server.connect() as link, link.cursor() as cursor:
        for name in ("sb", "binlake_reparo"):
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute("CREATE DATABASE sb COLLATE utf8mb4_bin")
        cursor.execute(CREATE)


def run_texts(server: MariaDb, texts: list[str]) -> None:
    """Run all `texts` in one transaction, as a window in atomic mode does."""
    with server.connect(autocommit=False) as link, link.cursor() as cursor:
        for text in texts:
            cursor.execute(text)
        link.commit()


def measure(server: MariaDb, work: Callable[[], object]) -> tuple[float, float, float]:
    """Run `work`; return (seconds, CPU seconds of this process, CPU seconds of the server)."""
    process = psutil.Process(server.pid)
    began, own, theirs = time.perf_counter(), time.process_time(), sum(process.cpu_times()[:2])
    work()
    return time.perf_counter() - began, time.process_time() - own, sum(process.cpu_times()[:2]) - theirs


if __name__ == "__main__":
    raise SystemExit(main())
