"""A feeder under load while processes, servers and connections fail and return, at random by a seed (S4-49, R-10).

Each transaction of the source is on the pumps once, and the target is equal in the end. Each run prints the line that
replays it.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.feeding import FedCluster, contents
from support.feedload import TABLES, Load, purge, run_windows, wait_for_transactions
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

pytestmark = [pytest.mark.soak, pytest.mark.mariadb, pytest.mark.process, pytest.mark.e2e]

SECONDS = float(os.environ.get("BINLAKE_SOAK_SECONDS", "60"))
LOADS = 1_000_000
"""Distance between the first numbers of two loads: each transaction has a unique number."""


class Faults:
    """Faults of `cluster`, which reads `server`; after each one everything works again."""

    def __init__(self, cluster: FedCluster, server: MariaDb, draw: random.Random) -> None:
        self._cluster = cluster
        self._server = server
        self._draw = draw
        self._loads = 0
        self.seen: Counter[str] = Counter()

    def strike(self) -> None:
        """Load the source while one random fault happens."""
        under_load: list[Callable[[], None]] = [
            self.feeder, self.driver, self.pump, self.connections, self.tracker,
        ]  # fmt: skip
        fault = self._draw.choice([*under_load, self.source, self.log])
        self.seen[fault.__name__] += 1
        self._loads += 1
        with Load(self._server, self._loads * LOADS):
            wait_for_transactions(self._cluster)
            if fault in under_load:
                fault()
                wait_for_transactions(self._cluster)
        if fault not in under_load:
            fault()

    def feeder(self) -> None:
        """The feeder is stopped and started."""
        self._cluster.stop_feeder()
        self._cluster.start_feeder()

    def driver(self) -> None:
        """The placement driver is restarted."""
        self._cluster.restart_driver()

    def pump(self) -> None:
        """A pump is paused and restarted."""
        name = self._draw.choice(sorted(self._cluster.pumps))
        self._cluster.stop_pump(name)
        wait_for_transactions(self._cluster)
        self._cluster.start_pump(name)

    def connections(self) -> None:
        """The source ends the connections that read its log."""
        query = "SELECT id FROM information_schema.processlist WHERE command = 'Binlog Dump'"
        for (connection,) in rows(self._server, query):
            execute(self._server, f"KILL {connection}")

    def tracker(self) -> None:
        """The tracker ends the feeder's session, possibly in the middle of a DDL."""
        for (holder,) in rows(self._server, "SELECT IS_USED_LOCK('binlake_tracker_shard-1__')"):
            if holder is not None:
                execute(self._server, f"KILL {holder}")

    def source(self) -> None:
        """The source is killed and restarted."""
        self._server.kill9()
        self._cluster.until(lambda status: status["sources"][0]["trouble"])
        self._server.start()

    def log(self) -> None:
        """The published part of the log is purged at the source while the feeder is stopped."""
        self._cluster.follow(self._server)
        self._cluster.stop_feeder()
        purge(self._server)
        self._cluster.start_feeder()


@pytest.mark.timeout(SECONDS + 1800)
def test_each_transaction_arrives_once_whatever_fails(empty_mariadb: MariaDb, tmp_path: Path) -> None:
    seed = int(os.environ.get("BINLAKE_SOAK_SEED", "1"))
    print(
        f"replay: BINLAKE_SOAK_SEED={seed} BINLAKE_SOAK_SECONDS={SECONDS:g} .venv/bin/python -m pytest -m soak "
        f"{__file__}"
    )
    with mariadb_in_memory(MariaDb.list_source_options()) as server:
        for one in (server, empty_mariadb):
            execute(one, "DROP DATABASE IF EXISTS fed", "CREATE DATABASE fed", *TABLES)
        source = {"name": "shard-1", "host": server.host, "port": server.port, "start": {"mode": "now"}}
        with FedCluster(tmp_path, server, [source]) as cluster:
            cluster.start_feeder()
            faults, end = Faults(cluster, server, random.Random(seed)), time.monotonic() + SECONDS
            while time.monotonic() < end:
                faults.strike()
            cluster.follow(server)
            times = Counter(tail for _, tail, _ in cluster.published())
            print(f"{len(times)} transactions; faults: {dict(faults.seen)}")
            assert {tail for tail, count in times.items() if count > 1} == set()
            target = {"db-type": "mariadb", "host": empty_mariadb.host, "port": empty_mariadb.port}
            # Ten minutes are longer than any window takes without Spark.
            run_windows(cluster, target, window={"driver-bytes": 512 << 20})
            assert contents(empty_mariadb, "fed") == contents(server, "fed")
