"""A loader of a real server with a journal and pumps in memory, which fail when a test wants them to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feeder_helpers import CountingClock, MemoryPumps
from support.mariadb import MariaDb, MySql, execute

from binlake.common.sql import Dialect
from binlake.mysqlbinlog.definitions.writer import SourceNames
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.loading import SnapshotLoader
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.tracker import ScratchServer
from binlake.rows.codec.columnblocks import count_block_rows, is_column_block
from binlake.wire import binlog_pb2 as pb

DB = "snapload"
SERVER_ID = 4_100_000


class DyingPumps(MemoryPumps):
    """`dies_at`: the number of the call that ends the feeder; 0 = none. `before` is called with each call's number."""

    dies_at = 0
    calls = 0
    before: Callable[[int], None] = staticmethod(lambda _: None)

    def write_prewrites(self, binlogs: Sequence[pb.Binlog]) -> list[str]:
        self.calls += 1
        self.before(self.calls)
        if self.calls == self.dies_at:
            raise KeyboardInterrupt
        return super().write_prewrites(binlogs)


class Loaded:
    """A feeder's parts around a loader of `server`, in one folder; created anew for each start, as in a new process.

    `source`: settings besides the server's address; `snapshot`: settings of the load; `families` and
    `is_paused` may be set before it.
    """

    families: tuple[Dialect, ...] = ()
    is_paused: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(
        self,
        server: MariaDb,
        folder: Path,
        pumps: DyingPumps,
        clock: CountingClock,
        source: Mapping[str, Any] | None = None,
        **snapshot: Any,
    ) -> None:
        own = {"name": "s1", "host": server.host, "port": server.port, "snapshot": {"chunk-rows": 40, **snapshot}}
        self.source = SourceFile.model_validate({**own, **(source or {})})
        self.journal = FeederJournal(folder)
        self.publisher = SourcePublisher(self.journal, pumps, clock, threading.Event())
        flavor = Flavor.MYSQL if isinstance(server, MySql) else Flavor.MARIADB
        names = SourceNames("s1", flavor, ignores=lambda db, _table: db != DB)
        tracker = ScratchServer("s1", flavor, {"host": server.host, "port": server.port, "user": "root"})
        self.catalog = Catalog([names], {"s1": tracker}, self.journal.read_jobs()[::-1])
        self.progress: list[SnapshotProgress] = []

    def load(self) -> None:
        arguments = self.journal, self.publisher, self.catalog, threading.Event(), self.progress.append
        SnapshotLoader(
            self.source, *arguments, server_id=SERVER_ID, families=self.families, is_paused=self.is_paused
        ).load()

    def close(self) -> None:
        self.journal.close()


def committed(pumps: MemoryPumps) -> list[pb.Binlog]:
    """The prewrites that have a commit, in the order of commits."""
    prewrites = {binlog.start_ts: binlog for binlog in pumps.of_type(pb.Prewrite)}
    return [
        prewrites[commit.start_ts] for commit in sorted(pumps.of_type(pb.Commit), key=lambda commit: commit.commit_ts)
    ]


def rows_of(binlogs: Sequence[pb.Binlog]) -> int:
    values = [pb.PrewriteValue.FromString(binlog.prewrite_value) for binlog in binlogs if binlog.prewrite_value]
    return sum(count_inserts(mutation) for value in values for mutation in value.mutations)


def rows_left(binlogs: Sequence[pb.Binlog], catalog: Catalog) -> int:
    """The inserted rows of the tables that `catalog` has: those of a table that was dropped are gone."""
    values = [pb.PrewriteValue.FromString(binlog.prewrite_value) for binlog in binlogs if binlog.prewrite_value]
    present = [
        mutation for value in values for mutation in value.mutations if catalog.state.find_table(mutation.table_id)
    ]
    return sum(map(count_inserts, present))


def count_inserts(mutation: pb.TableMutation) -> int:
    """The inserted rows, also those of blocks."""
    return sum(count_block_rows(row) if is_column_block(row) else 1 for row in mutation.inserted_rows)


def filled(server: MariaDb) -> MariaDb:
    execute(server, f"DROP DATABASE IF EXISTS {DB}", f"CREATE DATABASE {DB}")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT i, i FROM n"
    execute(server, f"CREATE TABLE {DB}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {DB}.t {numbers}")
    return server
