"""Continuous validation with a feeder: rows of the windows, compared with the server that they come from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.feeding import FedCluster
from support.feedload import run_windows
from support.mariadb import MariaDb, execute, rows

from binlake.extras.validation.ledger import ValidationEntry, ValidationLedger
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.job.results import StageResult

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


@pytest.fixture(params=["mariadb_source", pytest.param("mysql", marks=pytest.mark.soak)])
def server(request: pytest.FixtureRequest) -> MariaDb:
    """The source."""
    made: MariaDb = request.getfixturevalue(request.param)
    return made


class Fed:
    """A feeder of `server` whose windows are validated; `asked`: the server that validation reads."""

    def __init__(self, cluster: FedCluster, server: MariaDb, target: dict[str, Any]) -> None:
        self.cluster, self.server, self.target = cluster, server, target
        self.paths = LakePaths.of(cluster.replication())
        self.asked = server

    def window(self) -> StageResult:
        """Wait for the source, run windows, and return the last validation's result."""
        self.cluster.follow(self.server)
        return self.windows()[-1]

    def windows(self) -> list[StageResult]:
        source = {"name": "shard-1", "host": self.asked.host, "port": self.asked.port, "rename-schema": "in_{schema}"}
        options = {"mode": "full", "source": [source]}
        results = run_windows(self.cluster, self.target, validation=options)
        return [result for result in results if result.stage == "validate"]

    def entries(self) -> list[ValidationEntry]:
        return ValidationLedger(self.paths).list_entries()


@pytest.fixture
def fed(server: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path) -> Iterator[Fed]:
    execute(mariadb, "CREATE DATABASE in_own CHARACTER SET utf8mb4")
    execute(server, "DROP DATABASE IF EXISTS own", "CREATE DATABASE own CHARACTER SET utf8mb4")
    source = {"name": "shard-1", "host": server.host, "port": server.port, "start": {"mode": "now"},
              "rename-schema": "in_{schema}"}  # fmt: skip
    with FedCluster(tmp_path, server, [source], pumps=1) as cluster:
        cluster.start_feeder()
        execute(
            server,
            "CREATE TABLE own.t (id INT PRIMARY KEY, v INT, at TIMESTAMP(3) NULL, note TEXT CHARACTER SET latin1)",
            "INSERT INTO own.t VALUES (1, 1, NOW(3), 'große Straße'), (2, 2, NULL, NULL), (3, 3, NULL, 'x')",
        )
        yield Fed(cluster, server, target)


def execute_unlogged(server: MariaDb, *statements: str) -> None:
    """Execute changes that the source does not log, as if the feeder had lost rows."""
    with server.connect() as link, link.cursor() as cursor:
        for statement in ("SET SESSION sql_log_bin = 0", *statements, "SET SESSION sql_log_bin = 1"):
            cursor.execute(statement)


def test_row_that_differs_at_the_source_is_proven_and_named(fed: Fed) -> None:
    done = fed.window()
    assert (done.state, done.rows, done.detail["against_source"], done.detail["errors"]) == ("done", 3, 3, 0)
    execute(fed.server, "UPDATE own.t SET v = 20 WHERE id = 2", "DELETE FROM own.t WHERE id = 3")
    fed.cluster.follow(fed.server)
    execute_unlogged(fed.server, "UPDATE own.t SET v = 21 WHERE id = 2")
    done = fed.windows()[-1]
    # The change could still be on its way, so the entry waits in the lake, across restarts.
    assert (done.detail["pending"], done.detail["errors"]) == (1, 0)
    fed.cluster.stop_feeder()
    fed.cluster.start_feeder()
    execute(fed.server, "INSERT INTO own.t VALUES (4, 4, NULL, NULL)")
    done = fed.window()
    assert (done.detail["pending"], done.detail["errors"]) == (0, 1)
    (error,) = fed.entries()
    assert (error.status, error.against, error.db, error.key, error.differing) == (
        "new", "source", "in_own", '["2"]', ("v",),
    )  # fmt: skip
    assert ('"21"' in error.expected, '"20"' in error.found) == (True, True)
    # The source is changed back to the state of its log, which resolves the error.
    execute_unlogged(fed.server, "UPDATE own.t SET v = 20 WHERE id = 2")
    execute(fed.server, "INSERT INTO own.t VALUES (5, 5, NULL, NULL)")
    assert fed.window().detail["errors"] == 0
    assert [entry.status for entry in fed.entries()] == ["resolved"]


def _keep_changing(server: MariaDb, stopped: threading.Event) -> Callable[[], None]:
    def write() -> None:
        with server.connect() as link, link.cursor() as cursor:
            while not stopped.wait(0.002):
                cursor.execute("UPDATE own.t SET v = v + 1 WHERE id < 3")
                cursor.execute("REPLACE INTO own.t VALUES (9, FLOOR(RAND() * 9), NULL, NULL)")
                cursor.execute("DELETE FROM own.t WHERE id = 9")
                link.commit()

    return write


def test_constantly_changing_rows_give_no_error(fed: Fed) -> None:
    stopped = threading.Event()
    writer = threading.Thread(target=_keep_changing(fed.server, stopped))
    writer.start()
    seen = 0
    try:
        for _ in range(2):
            for done in fed.windows():
                seen += done.detail["pending"]
                assert (done.detail["errors"], done.detail["tables"]) == (0, {})
    finally:
        stopped.set()
        writer.join()
    # Rows were compared while changes were on their way.
    assert seen > 0
    assert fed.window().detail["errors"] == 0
    execute(fed.server, "INSERT INTO own.t VALUES (7, 7, NULL, NULL)")
    done = fed.window()
    assert (done.detail["pending"], done.detail["errors"]) == (0, 0)


@pytest.mark.parametrize("server", ["mariadb_source"], indirect=True)
def test_lagging_replica_proves_nothing(fed: Fed, second_mariadb: MariaDb) -> None:
    second_mariadb.wipe()
    execute(
        second_mariadb,
        "CREATE DATABASE own",
        rows(fed.server, "SHOW CREATE TABLE own.t")[0][1].replace("CREATE TABLE", "CREATE TABLE own.", 1),
        "INSERT INTO own.t VALUES (1, 0, NULL, 'old')",
    )
    fed.asked = second_mariadb
    for number in (10, 11):
        execute(fed.server, f"INSERT INTO own.t VALUES ({number}, 1, NULL, NULL)")
        done = fed.window()
        assert (done.detail["errors"], done.detail["pending"] > 0) == (0, True)
    # The replica has caught up, so it counts like the server itself.
    fed.asked = fed.server
    execute(fed.server, "INSERT INTO own.t VALUES (13, 1, NULL, NULL)")
    done = fed.window()
    assert (done.detail["errors"], done.detail["pending"]) == (0, 0)
