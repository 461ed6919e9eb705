"""A source of any size in this process, and the windows' process over it, for bench_scale.py.

Tables are DDL jobs in the source's history, so a source of 20,000 tables is there in seconds. Only those that a
measurement writes to exist at the target as well.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench_end_to_end import run_process
from support.live import LiveSource
from support.workload import integer, text
from window_process import WindowJob, WindowRun

from deploy.local.mariadb import MariaDb

DB = "d"
COLUMNS = [integer("id"), integer("v"), text("w"), text("x", 255), integer("y"), integer("z")]
KEY = ["id"]


@dataclass
class World:
    """A live source, its target, and a lake in `folder`."""

    live: LiveSource
    target: MariaDb
    folder: Path
    started: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def create_tables(self, count: int) -> None:
        """`count` tables `t0`, `t1`… whose DDL was executed before the replication starts."""
        workload = self.live.workload
        asked, sink = workload.clock, workload.sink
        ticks = itertools.count(asked())
        # 40,000 requests to a PD would take longer than all windows.
        workload.clock, workload.sink = (lambda: next(ticks)), None
        workload.create_database(DB)
        for number in range(count):
            workload.create_table(DB, f"t{number}", COLUMNS, KEY, ["w"])
        workload.clock, workload.sink = asked, sink
        self.started = asked()

    def insert(self, table: str, rows: int = 1) -> None:
        """One transaction that inserts `rows` rows."""
        begun = self.live.workload.begin()
        for _ in range(rows):
            number = next(self._ids)
            begun.insert(DB, table, id=number, v=1, w=f"w{number}")
        begun.commit()

    def create_at_target(self, *tables: str) -> None:
        """Create these tables at the target, as a full load would have."""
        with contextlib.closing(self.target.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DB}")
            for table in tables:
                cursor.execute(
                    f"CREATE TABLE {DB}.{table} (id INT PRIMARY KEY, v INT, w VARCHAR(64), x VARCHAR(255), y INT,"
                    " z INT, UNIQUE KEY uk_w (w)) CHARSET utf8mb4 COLLATE utf8mb4_bin"
                )

    @contextlib.contextmanager
    def run_process(self, **more: Any) -> Iterator[Connection]:
        """A new process for windows."""
        target = {"db-type": "mariadb", "host": self.target.host, "port": self.target.port, "user": self.target.user}
        settings = {"target": target, "initial-commit-ts": str(self.started), **self.settings, **more}
        replication = self.live.replication(**settings).model_dump(mode="json", by_alias=True, exclude_unset=True)
        others = {"mariadb": self.target.pid or 0}
        with run_process(WindowJob(replication, "plain", "", "", others), self.folder) as wire:
            yield wire
            wire.send(None)

    def run_windows(self, wire: Connection) -> WindowRun:
        """Windows up to now."""
        wire.send(self.live.settle())
        run = wire.recv()
        assert isinstance(run, WindowRun)
        return run


@contextlib.contextmanager
def open_world(folder: Path, target: MariaDb, pumps: int = 2) -> Iterator[World]:
    """A new source in `folder`."""
    os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[1])
    with LiveSource(folder, pumps) as live:
        yield World(live, target, folder)
