"""A feeder's worker that follows a real server and loads tables beside its log, with a journal and pumps in memory."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

from feeder_helpers import CountingClock
from loading_helpers import DB, SERVER_ID, DyingPumps
from support.mariadb import MariaDb, MySql
from support.windows import wait_until

from binlake.mysqlbinlog.definitions.writer import SourceNames
from binlake.mysqlbinlog.events.gtid import parse_gtid_set
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.catalog import Catalog
from binlake.pump_service.feeder.connection import SourceLog, open_log
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.parts import Parts
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.server import connect, read_log_end
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.snapshot.loading import SnapshotLoader, needs_load
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.snapshot.selection import FollowedTables, Selection
from binlake.pump_service.feeder.snapshot.tablerounds import TableRounds
from binlake.pump_service.feeder.tracker import ScratchServer
from binlake.pump_service.feeder.worker import Worker


class Followed:
    """A started worker of `server` in one folder; created anew for each start, as in a new process. `source`: settings
    besides the server's address."""

    def __init__(self, server: MariaDb, folder: Path, pumps: DyingPumps, clock: CountingClock, **source: Any) -> None:
        own = {"name": "s1", "host": server.host, "port": server.port, **source}
        self.source, self.folder = SourceFile.model_validate(own), folder
        self.flavor = Flavor.MYSQL if isinstance(server, MySql) else Flavor.MARIADB
        self.stopped = threading.Event()
        self.journal = FeederJournal(folder)
        self.publisher = SourcePublisher(self.journal, pumps, clock, self.stopped)
        followed = FollowedTables(self.source, Selection.read(self.journal, self.source))
        names = SourceNames("s1", self.flavor, ignores=lambda db, table: db != DB or followed.ignores(db, table))
        self._tracker = ScratchServer("s1", self.flavor, {"host": server.host, "port": server.port, "user": "root"})
        self.catalog = Catalog([names], {"s1": self._tracker}, self.journal.read_jobs()[::-1])
        self.parts = Parts(self.journal, self.publisher, self.catalog, self.stopped, self.catalog.version)
        self.progress: list[SnapshotProgress] = []
        self.rounds = TableRounds(followed, self.parts, self.catalog, folder, self.progress.append)
        self.ended: queue.Queue[BaseException | None] = queue.Queue()
        self.worker = Worker(self.source, self.parts, self._begin, self.ended.put, loads=self.rounds)
        self.worker.start()

    def _begin(self) -> SourceLog:
        if needs_load(self.journal, self.source):
            first: list[SnapshotProgress] = []
            SnapshotLoader(
                self.source, self.journal, self.publisher, self.catalog, self.stopped, first.append, SERVER_ID
            ).load()
        self.parts.version = self.catalog.version
        read = self.journal.read_positions()["s1"]
        return open_log(self.source, SERVER_ID, read.position, last_id=read.last_id)

    def wait_until_loaded(self) -> None:
        """Wait until the last load of tables is done."""
        wait_until(lambda: self._is_loaded() or not self.ended.empty(), seconds=20)
        assert self.ended.empty(), self.worker.failure

    def _is_loaded(self) -> bool:
        return bool(self.progress) and self.progress[-1].state == "done"

    def wait_until_published(self) -> None:
        """Wait until everything that the server has now is published."""
        with connect(self.source) as link:
            end = parse_gtid_set(self.flavor, read_log_end(link).gtids)

        def is_published() -> bool:
            read = self.journal.read_positions().get("s1")
            is_reached = read is not None and parse_gtid_set(self.flavor, read.position.gtids).contains_set(end)
            # The position is there before the commits are sent.
            return is_reached and self.worker.state == "reading" and not self.worker.is_publishing

        wait_until(lambda: is_published() or not self.ended.empty(), seconds=20)
        assert self.ended.empty(), self.worker.failure

    def close(self) -> None:
        self.stopped.set()
        self.worker.wake()
        self.worker.join()
        self._tracker.close()
        self.journal.close()
