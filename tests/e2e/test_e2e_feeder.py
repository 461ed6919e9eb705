"""A MariaDB server, the feeder, pumps, windows and another MariaDB server that is equal in the end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from support.feeding import WAIT_S, FedCluster, contents, mixed_transactions
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.target.commands.bootstrap import Bootstrap, follow_bootstrap
from spark_jobs.job.context import StageContext
from spark_jobs.job.runner import run_window

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    """A source of its own: its logs are purged."""
    with mariadb_in_memory(MariaDb.source_options()) as made:
        yield made


def no_spark() -> NoReturn:
    raise AssertionError("windows as small as these need no Spark")


def run_windows(cluster: FedCluster, target: dict[str, Any]) -> None:
    """Run windows until all that was published so far is applied."""
    context = StageContext(cluster.replication(target=target), "test", no_spark)
    until = cluster.settle()
    while (context.windows.landed_ts() or 0) < until:
        run_window(context)


def purge(server: MariaDb) -> None:
    """Remove every log file but a new one; the server keeps one that a connection is just leaving."""
    execute(server, "FLUSH BINARY LOGS")
    newest = rows(server, "SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + WAIT_S
    while len(rows(server, "SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline, "the server keeps its old logs"
        execute(server, f"PURGE BINARY LOGS TO '{newest}'")


def test_a_source_and_its_target_are_equal(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # S4-01 S4-50
    execute(server, "CREATE DATABASE fed CHARACTER SET utf8mb4")
    source = {"name": "shard-1", "host": server.host, "port": server.port, "start": {"mode": "now"}}
    with FedCluster(tmp_path, server, [source]) as cluster, server.connect() as link:
        cluster.start_feeder()
        execute(mariadb, "CREATE DATABASE fed CHARACTER SET utf8mb4")
        execute(
            server,
            "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE, at TIMESTAMP(3) DEFAULT NOW(3),"
            " note TEXT CHARACTER SET latin1, bits BIT(5), kind ENUM('a', 'é') DEFAULT 'é') CHARACTER SET utf8mb4",
            "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        )
        mixed_transactions(link, "fed", 1, 150)
        cluster.follow(server)
        run_windows(cluster, target)
        assert contents(mariadb, "fed") == contents(server, "fed")
        execute(
            server,
            "ALTER TABLE fed.t ADD COLUMN more DECIMAL(20, 4) NOT NULL DEFAULT 1.5, DROP COLUMN bits",
            "UPDATE fed.t SET note = 'große Straße', kind = 'a' WHERE id < 100",
            "RENAME TABLE fed.log TO fed.log2",
            "CREATE TABLE fed.log LIKE fed.log2",
        )
        mixed_transactions(link, "fed", 2, 150)
        execute(server, "TRUNCATE TABLE fed.log2", "INSERT INTO fed.log2 VALUES (1, NULL)")
        cluster.follow(server)
        # What is published needs the source's log no more: the pumps are its relay log.
        cluster.stop_feeder()
        purge(server)
        cluster.start_feeder()
        mixed_transactions(link, "fed", 3, 20)
        cluster.follow(server)
        run_windows(cluster, target)
        assert len(contents(server, "fed")) == 3
        assert contents(mariadb, "fed") == contents(server, "fed")


def test_a_full_load_under_writes_and_the_windows_behind_it(
    server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # S4-02 U-19 R-34
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 9999) SELECT"
    execute(
        server,
        "DROP DATABASE IF EXISTS fed",
        "CREATE DATABASE fed CHARACTER SET utf8mb4",
        "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE, at TIMESTAMP(3) DEFAULT NOW(3),"
        " note TEXT CHARACTER SET latin1, bits BIT(5), kind ENUM('a', 'é') DEFAULT 'é') CHARACTER SET utf8mb4",
        "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        "SET SESSION max_recursive_iterations = 20000",
        f"INSERT INTO fed.t (id, u, v, note, bits) {numbers} i, CONCAT('u', i), i / 7, 'ä€', i % 32 FROM n",
        f"INSERT INTO fed.log {numbers} i % 5, 'base' FROM n",
    )
    source = {"name": "shard-1", "host": server.host, "port": server.port, "snapshot": {"chunk-rows": 500}}
    stop = threading.Event()

    def write() -> None:
        with server.connect() as link:
            for seed in itertools.count(100):
                if stop.is_set():
                    return
                mixed_transactions(link, "fed", seed, 5)

    writer = threading.Thread(target=write)
    with FedCluster(tmp_path, server, [source]) as cluster:
        writer.start()
        try:
            cluster.start_feeder()
            load = cluster.status()["sources"][0]["load"]
            for _ in range(2):
                run_windows(cluster, target)
        finally:
            stop.set()
            writer.join()
        assert (load["state"], load["tables_done"]) == ("done", 2)
        assert load["by_table"]["fed.t"]["chunks"] > 10
        cluster.follow(server)
        run_windows(cluster, target)
        assert len(contents(server, "fed")["t"]) > 5_000
        assert contents(mariadb, "fed") == contents(server, "fed")
        shown: list[Bootstrap] = []
        done = follow_bootstrap(cluster.replication(target=target), "applied", shown.append)
        assert shown == [done]
        assert (done.loads[0].rows, done.loads[0].tables) == (load["rows"], 2)
