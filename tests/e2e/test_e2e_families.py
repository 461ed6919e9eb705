"""A MySQL and a MariaDB through one feeder, each with a tracker of its family, into one MariaDB and the mirrors."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.feeding import FedCluster, contents, mixed_transactions
from support.feedload import run_windows
from support.mariadb import MariaDb, MySql, execute, rows

from binlake.lake.paths import LakePaths

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

TABLES = (
    "CREATE TABLE {db}.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE, note TEXT CHARACTER SET latin1,"
    " kind ENUM('a', 'é') DEFAULT 'é', j JSON, n BIGINT UNSIGNED, d DECIMAL(30, 10)) CHARACTER SET utf8mb4",
    "CREATE TABLE {db}.log (n INT, what VARCHAR(30))",
)
BASE = (
    "INSERT INTO {db}.t (id, u, v, note, j, n, d) VALUES (1, 'x', 0.1, 'ä', '{{\"k\": [1, 2.5, 5.0]}}', 1 << 63, 1.5),"
    " (399, 'ß', -1, NULL, NULL, NULL, -12345678901234567890.0123456789)",
    "INSERT INTO {db}.log VALUES (1, 'base'), (1, 'base')",
)
DDL = (
    "ALTER TABLE {db}.t ADD COLUMN more DECIMAL(20, 4) NOT NULL DEFAULT 1.5, MODIFY note VARCHAR(99)",
    'UPDATE {db}.t SET j = \'{{"p": 5.0, "q": [100.0, 100]}}\' WHERE id = 399',
    "CREATE TABLE {db}.late (id BINARY(4) PRIMARY KEY, at DATETIME(6))",
    "INSERT INTO {db}.late VALUES ('abc', '2020-02-02 01:02:03.456789')",
    "RENAME TABLE {db}.log TO {db}.log2",
    "CREATE TABLE {db}.log LIKE {db}.log2",
)


def test_sources_of_two_families_and_one_target_are_equal(
    mariadb_source: MariaDb, mysql: MySql, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # S4-01 S4-02 U-19
    servers: Mapping[str, MariaDb] = {"ma": mariadb_source, "my": mysql}
    for db, server in servers.items():
        server.wipe()
        run(server, db, "CREATE DATABASE {db} CHARACTER SET utf8mb4", *TABLES, *BASE)
    at = {name: {"host": one.host, "port": one.port} for name, one in servers.items()}
    sources = [{"name": "ma", **at["ma"]}, {"name": "my", **at["my"], "tracker": at["my"]}]
    with FedCluster(tmp_path, mariadb_source, sources) as cluster:
        cluster.start_feeder()
        for db, server in servers.items():
            with server.connect() as link:
                mixed_transactions(link, db, 1, 60)
        run_windows(cluster, target, mirror={"enabled": True})
        for db, server in servers.items():
            run(server, db, DDL[0])
        cluster.follow(*servers.values())
        for db, server in servers.items():
            lose_tracker(server, db)
            run(server, db, *DDL[1:])
            with server.connect() as link:
                mixed_transactions(link, db, 2, 60)
        cluster.follow(*servers.values())
        run_windows(cluster, target, mirror={"enabled": True})
        for db, server in servers.items():
            found = contents(server, db)
            assert set(found) == {"t", "log", "log2", "late"}
            assert len(found["t"]) > 30
            assert contents(mariadb, db) == found
            assert read_mirror(cluster, db) == read_table(server, db)


def run(server: MariaDb, db: str, *statements: str) -> None:
    execute(server, *(statement.format(db=db) for statement in statements))


def lose_tracker(server: MariaDb, source: str) -> None:
    """End the feeder's session on the tracker of `source`, so that its next DDL finds the session lost."""
    ((holder,),) = rows(server, f"SELECT IS_USED_LOCK('binlake_tracker_{source}__')")
    execute(server, f"KILL {holder}")


def read_mirror(cluster: FedCluster, db: str) -> list[tuple[int, str | None, Decimal]]:
    """(id, u, more) of the mirror of t."""
    table = DeltaTable(LakePaths.of(cluster.replication()).locate_mirror(db, "t")).to_pyarrow_table(
        columns=["id", "u", "more"]
    )
    return sorted(tuple(row.values()) for row in table.to_pylist())


def read_table(server: MariaDb, db: str) -> list[tuple[int, str | None, Decimal]]:
    """(id, u, more) of t."""
    return sorted(rows(server, f"SELECT id, u, more FROM {db}.t"))
