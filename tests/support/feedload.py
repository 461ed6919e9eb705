"""Helpers of the feeder's tests: a write load on a source, windows that consume it, and purging of the log."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, NoReturn

from support.feeding import WAIT_S, FedCluster
from support.mariadb import MariaDb, execute, rows

from binlake.spark_jobs.job.context import StageContext, StageResult
from binlake.spark_jobs.job.runner import run_window

TABLES = ("CREATE TABLE fed.log (n INT, what VARCHAR(30))", "CREATE TABLE fed.t (id INT PRIMARY KEY, v INT)")
"""The tables that `Load` writes to."""


class Load:
    """Writes to the source until the context ends: each transaction logs its number in the keyless fed.log; some run
    DDL.
    """

    def __init__(self, server: MariaDb, first: int = 0) -> None:
        self._server = server
        self._first = first
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            with self._server.connect() as link, link.cursor() as cursor:
                for number in itertools.count(self._first):
                    if self._stopped.wait(0.002):
                        return
                    self._write(cursor, number)
        except BaseException as error:  # noqa: BLE001 - raised at the end
            self.failure = error

    def _write(self, cursor: Any, number: int) -> None:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO fed.log VALUES (%s, 'one a transaction')", (number,))
        cursor.execute("REPLACE INTO fed.t (id, v) VALUES (%s, %s)", (number % 50, number))
        cursor.execute("COMMIT")
        if number % 40 == 20:
            cursor.execute(f"ALTER TABLE fed.t ADD COLUMN c{number} INT DEFAULT {number}")
        if number % 40 == 30:
            cursor.execute(f"ALTER TABLE fed.t DROP COLUMN c{number - 10}")


def run_windows(cluster: FedCluster, target: dict[str, Any], **more: Any) -> list[StageResult]:
    """Run windows until everything published so far is applied; return the results of their stages.

    `more`: sections of the replication.
    """
    context = StageContext(cluster.replication(target=target, **more), "test", _no_spark)
    until, results = cluster.settle(), list[StageResult]()
    while (context.windows.find_landed_ts() or 0) < until:
        results += run_window(context)
    return results


def purge(server: MariaDb) -> None:
    """Purge all log files except a new one; retries because the server keeps a file until a connection has left it."""
    execute(server, "FLUSH BINARY LOGS")
    newest = rows(server, "SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + WAIT_S
    while len(rows(server, "SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < deadline, "the server still has its old logs"
        execute(server, f"PURGE BINARY LOGS TO '{newest}'")


def wait_for_transactions(cluster: FedCluster) -> None:
    """Wait until 50 more transactions are published."""
    before = cluster.status()["sources"][0]["transactions"]
    cluster.until(lambda status: status["sources"][0]["transactions"] >= before + 50)


def _no_spark() -> NoReturn:
    raise AssertionError("such small windows must not need Spark")
