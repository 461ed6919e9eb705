"""`make bench-apply`: rendering (convert's core) and finalize in each mode, compared with the target's floor.

The floor, in the same run: the same final rows as prepared multi-row statements over 4 connections of this process,
1000 rows for each statement and transaction, deletes first; no fence, ledger, digest, presence check or reading from
the lake. Compare ratios, because absolute figures depend on the machine; on a busy one compare CPU seconds (of this
process + of the server). SCALE=0.1 takes a tenth of the rows, ROUNDS=1 one round instead of three, ONLY=a one workload.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import structlog

from binlake.config.servers import TargetSection
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import IndexColumn, IndexInfo
from binlake.rows.schema.job import PUBLIC
from binlake.spark_jobs.shared.statements import build_statement_table
from binlake.statements import BatchLimits, Phase, StatementBatch, TableStatements
from binlake.statements.batch import restore_checked_batch
from binlake.target import SegmentPlan, apply_window
from binlake.window.manifest import ApplyManifest
from deploy.local.mariadb import MariaDb

SCALE = float(os.environ.get("SCALE", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
ONLY = os.environ.get("ONLY", "")
FLOOR_CONNECTIONS = 4
FLOOR_ROWS = 1000
MODES: dict[str, dict[str, object]] = {
    "atomic": {"mode": "atomic"},
    "parallel x4": {"mode": "parallel", "worker_count": 4},
    "parallel x16": {"mode": "parallel", "worker_count": 16},
}
# (rows a statement and transaction, outside safe mode)
FORMS = {"100 rows": (100, False), "1000 rows": (1000, False), "1000 rows, plain": (1000, True)}


@dataclass(frozen=True)
class ApplyTable:
    """A table of the benchmark: keys to delete, keys to write, and keys that exist before."""

    name: str
    deleted: np.ndarray
    written: np.ndarray
    before: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def definition(self) -> TableDef:
        """id, k, c, pad with a primary key, as in sysbench."""
        key = IndexInfo(1, "PRIMARY", (IndexColumn("id", 0, -1),), PUBLIC, True, True, True)
        return TableDef(
            id=1, db_id=1, db="bench", name=self.name, charset="utf8mb4", collate="utf8mb4_bin",
            all_columns=_COLUMNS, indexes=(key,), pk_is_handle=False,
            is_common_handle=True, partition_ids=(), kind="table", comment="", raw={},
        )  # fmt: skip

    def build_images(self, keys: np.ndarray, salt: int) -> dict[str, pa.Array]:
        """Columns of text for rows with these keys."""
        ids = pa.array(keys).cast(pa.large_string())
        numbers = ((keys * 2654435761 + salt) % 1_000_000_007).astype(np.int64)
        k = pa.array(numbers % 1_000_000).cast(pa.large_string())
        c = pa.array([f"{n:011d}-" * 9 for n in numbers.tolist()], pa.large_string())
        pad = pa.array([f"{n:011d}-" * 4 for n in numbers.tolist()], pa.large_string())
        return {"id": ids, "k": k, "c": c, "pad": pad}


def _build_column(number: int, name: str, kind: int, flen: int, flag: int = 0) -> ColumnInfo:
    form = {"Tp": kind, "Flag": flag, "Flen": flen, "Decimal": 0, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
    return ColumnInfo.from_json({"id": number, "name": {"O": name}, "offset": number - 1, "type": form, "state": 5})


_COLUMNS = (
    _build_column(1, "id", t.LONGLONG, 20, t.FLAG_NOT_NULL | t.FLAG_PRIMARY),
    _build_column(2, "k", t.LONG, 11),
    _build_column(3, "c", t.VARCHAR, 120),
    _build_column(4, "pad", t.VARCHAR, 60),
)


@dataclass(frozen=True)
class Workload:
    """`events` row changes whose net changes are those of `tables`."""

    label: str
    events: int
    tables: tuple[ApplyTable, ...]

    @property
    def rows(self) -> int:
        """The number of net changes."""
        return sum(len(table.deleted) + len(table.written) for table in self.tables)


def build_workloads() -> list[Workload]:
    """(a) inserts, (b) updates of hot rows, (c) transactions of five rows over four tables."""
    none, random = np.empty(0, np.int64), np.random.default_rng(7)
    inserts, updates, mixed = (int(n * SCALE) for n in (200_000, 200_000, 500_000))
    hot = np.arange(int(10_000 * SCALE))
    tables = []
    for number in range(4):
        keys = np.unique(random.integers(0, int(60_000 * SCALE), mixed // 4))
        gone = random.random(len(keys)) < 0.05
        there = np.arange(0, int(60_000 * SCALE), 2)
        tables.append(ApplyTable(f"t{number}", keys[gone], keys[~gone], there))
    return [
        Workload(f"(a) {inserts:,} inserts", inserts, (ApplyTable("a", none, np.arange(inserts)),)),
        Workload(f"(b) {updates:,} updates of {len(hot):,} rows", updates, (ApplyTable("b", none, hot, hot),)),
        Workload(f"(c) {mixed // 5:,} transactions of 5 rows, 4 tables", mixed, tuple(tables)),
    ]


def render_batches(workload: Workload, rows: int, plain: bool) -> tuple[list[StatementBatch], float]:
    """The batches, and the seconds that rendering their text from columns took."""
    given = [
        (table, table.build_images(table.deleted, 1), table.build_images(table.written, 1)) for table in workload.tables
    ]
    batches: list[StatementBatch] = []
    began, numbers = time.perf_counter(), {Phase.DELETE: 0, Phase.WRITE: 0}
    for table, deleted, written in given:
        for phase, images in ((Phase.DELETE, deleted), (Phase.WRITE, written)):
            writer = TableStatements(
                table.definition, 0, limits=BatchLimits(rows), first_batch=numbers[phase], plain=plain, alike=True
            )
            batches += writer.render_deletes(images) if phase is Phase.DELETE else writer.render_writes(images)
            numbers[phase] = writer.next_batch
    return batches, time.perf_counter() - began


class StoredStatements:
    """A StatementSource over a Parquet file, checked against its digests as finalize does."""

    def __init__(self, folder: Path, batches: list[StatementBatch]) -> None:
        self.rows = sum(batch.rows for batch in batches)
        data = build_statement_table("0-1", batches)
        pq.write_table(data, folder / "statement.parquet", compression="snappy")
        self._data = ds.dataset(folder / "statement.parquet")

    def list_segments(self) -> list[SegmentPlan]:
        """One segment."""
        return [SegmentPlan(0, 1, 1, rows=self.rows)]

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """The batches, read as LakeStatements reads them."""
        where = (ds.field("segment") == segment) & (ds.field("phase") == phase)
        names = [name for name in self._data.schema.names if name != "window"]
        stored = self._data.to_batches(columns=names, filter=where, batch_size=8, batch_readahead=1)
        for batch in stored:
            yield from map(restore_checked_batch, batch.to_pylist())


def prepare(server: MariaDb, workload: Workload) -> None:
    """Create the tables with their existing rows, without a checkpoint."""
    server.wipe()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
        for table in workload.tables:
            cursor.execute(
                f"CREATE TABLE bench.{table.name} (id BIGINT PRIMARY KEY, k INT, c VARCHAR(120), pad VARCHAR(60))"
            )
            for batch in TableStatements(table.definition, 0, limits=BatchLimits(1000)).render_writes(
                table.build_images(table.before, 0)
            ):
                cursor.execute(batch.sql[0])


class ApplyCost(NamedTuple):
    """Seconds: of wall time, of this process's CPU, of the server's CPU."""

    wall: float
    own: float
    server: float

    def __str__(self) -> str:
        return f"{self.wall:6.2f} s, CPU {self.own:5.2f} + {self.server:5.2f} s"


def cost_of(server: MariaDb, work: Callable[[], None]) -> ApplyCost:
    """Run `work` and measure its cost."""
    process = psutil.Process(server.pid)
    before, own, wall = process.cpu_times(), time.process_time(), time.perf_counter()
    work()
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return ApplyCost(time.perf_counter() - wall, time.process_time() - own, spent)


def measure_floor(server: MariaDb, batches: list[StatementBatch]) -> None:
    """Run the prepared statements over a few connections, phase by phase."""
    for phase in (Phase.DELETE, Phase.WRITE):
        texts = iter([sql for batch in batches if batch.phase is phase for sql in batch.sql])
        _run_in_threads(lambda texts=texts: _run(server, texts))  # type: ignore[misc]


def _run(server: MariaDb, texts: Iterator[str]) -> None:
    with server.connect() as connection:
        for text in texts:
            connection.query(text)


def _run_in_threads(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(FLOOR_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def finalize(server: MariaDb, source: StoredStatements, options: dict[str, object]) -> None:
    """Apply the window, from the first connection to the release of the lease."""
    target = TargetSection(db_type="mariadb", host=server.host, port=server.port, user=server.user, **options)
    manifest = ApplyManifest(
        replication="bench", sink="sql", cluster_id=1, lo=0, hi=1, config_hash="", safe_mode="safe", definitions="",
        change="", statement="", segments=1, rows=source.rows, schema_version=1, windows=("0-1",),
    )  # fmt: skip
    apply_window(target, manifest, source)


def measure(server: MariaDb, workload: Workload) -> None:
    """Alternate floor and finalize; the best of the rounds counts."""
    print(f"\n{workload.label}: {workload.events:,} events, {workload.rows:,} net")
    with tempfile.TemporaryDirectory(prefix="binlake-bench-") as folder:
        plain_texts, _ = render_batches(workload, FLOOR_ROWS, plain=False)
        for label, (rows, plain) in FORMS.items():
            batches, seconds = render_batches(workload, rows, plain)
            print(f"  render    {label:<17} {_format_rates(workload, seconds)}")
            source = StoredStatements(Path(folder), batches)
            for mode, options in MODES.items():
                floors, runs = [], []
                for _ in range(ROUNDS):
                    prepare(server, workload)
                    floors.append(cost_of(server, lambda: measure_floor(server, plain_texts)))
                    prepare(server, workload)
                    runs.append(cost_of(server, lambda s=source, o=options: finalize(server, s, o)))  # type: ignore
                least, best = min(floors), min(runs)
                ratios = f"ratio {best.wall / least.wall:.2f}, CPU {_sum_cpu(best) / _sum_cpu(least):.2f}"
                rates = f"{label:<17} {_format_rates(workload, best.wall)}  {mode:<13}"
                print(f"  finalize  {rates} {best}; floor {least}; {ratios}", flush=True)


def _sum_cpu(cost: ApplyCost) -> float:
    return cost.own + cost.server


def _format_rates(workload: Workload, seconds: float) -> str:
    return f"{workload.rows / seconds:>9,.0f} rows/s {workload.events / seconds:>9,.0f} events/s"


def main() -> int:
    """Print a line for each workload, batch size and mode."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with MariaDb(options=("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=512M")) as server:
        for workload in build_workloads():
            if workload.label.startswith(f"({ONLY}"):
                measure(server, workload)
    return 0


if __name__ == "__main__":
    sys.exit(main())
