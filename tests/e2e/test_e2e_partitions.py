"""Partitions emptied at a MySQL or MariaDB source: no row change is logged, and no mirror may bring the rows back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.feeding import FedCluster, contents
from support.feedload import run_windows
from support.mariadb import MariaDb, execute

from binlake.lake.paths import LakePaths
from binlake.mirror.plan import PARTITIONS
from binlake.repair.lakeside import list_tables_at
from binlake.repair.repairing import build_settled_target, group_keys_by_table, repair_keys
from binlake.repair.verify import VerifyOptions, verify

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

NUMBERS = ", ".join(f"({n}, {v})" for n, v in ((1, 1), (2, 5), (3, 12), (4, -7), (5, 22), (6, 4)))
DAYS = "(1, '2019-12-31 23:59:59'), (2, '2020-01-01'), (3, '2020-06-01 12:00:00'), (4, '2021-01-01'), (5, '1999-01-01')"
RANGE = (
    "(PARTITION p0 VALUES LESS THAN (5), PARTITION p1 VALUES LESS THAN (12), PARTITION p2 VALUES LESS THAN MAXVALUE)"
)
# (columns and partitioning, rows, clauses of ALTER TABLE) by table name.
TABLES = {
    "r_drop": (
        f"(id INT PRIMARY KEY, V INT) PARTITION BY RANGE (id) {RANGE}",
        NUMBERS,
        "DROP PARTITION p0",
    ),
    "keyless": (
        f"(id INT, v INT) PARTITION BY RANGE (v) {RANGE}",
        f"{NUMBERS}, (1, 1), (9, NULL)",
        "TRUNCATE PARTITION p0",
    ),
    "big": (
        "(id INT, v BIGINT UNSIGNED) PARTITION BY HASH (v) PARTITIONS 3",
        "(1, 18446744073709551615), (2, 9223372036854775808), (3, 7), (4, NULL), (5, 9223372036854775810)",
        "TRUNCATE PARTITION p1, p2",
    ),
    "hashed": (
        "(id INT, v INT) PARTITION BY HASH (v) PARTITIONS 3",
        f"{NUMBERS}, (9, NULL)",
        "TRUNCATE PARTITION p2",
    ),
    "listed": (
        "(id INT, v INT) PARTITION BY LIST (v) (PARTITION a VALUES IN (1, NULL, 5), PARTITION b VALUES "
        "IN (12, -7, 22, 4))",
        f"{NUMBERS}, (9, NULL)",
        "DROP PARTITION a",
    ),
    "pairs": (
        "(id INT, v INT) PARTITION BY LIST COLUMNS (ID, v) (PARTITION a VALUES IN ((1, 1), (4, -7)), "
        "PARTITION b VALUES IN ((2, 5), (3, 12), (5, 22), (6, 4)))",
        NUMBERS,
        "TRUNCATE PARTITION a",
    ),
    "two": (
        "(id INT, v INT) PARTITION BY RANGE COLUMNS (id, v) (PARTITION a VALUES LESS THAN (3, 12), "
        "PARTITION b VALUES LESS THAN (5, MAXVALUE), PARTITION c VALUES LESS THAN (MAXVALUE, MAXVALUE))",
        NUMBERS,
        "DROP PARTITION b",
    ),
    "years": (
        "(id INT, at DATETIME) PARTITION BY RANGE (YEAR(at)) (PARTITION a VALUES LESS THAN (2020), "
        "PARTITION b VALUES LESS THAN (2021), PARTITION c VALUES LESS THAN MAXVALUE)",
        f"{DAYS}, (9, NULL)",
        "TRUNCATE PARTITION a",
    ),
    "days": (
        "(id INT, at DATE) PARTITION BY RANGE (TO_DAYS(at)) (PARTITION a VALUES LESS THAN "
        "(TO_DAYS('2020-01-01')), PARTITION b VALUES LESS THAN MAXVALUE)",
        DAYS,
        "DROP PARTITION a",
    ),
    "stamps": (
        "(id INT, at TIMESTAMP NOT NULL) PARTITION BY RANGE (UNIX_TIMESTAMP(at)) (PARTITION a VALUES "
        "LESS THAN (UNIX_TIMESTAMP('2020-01-01 00:00:00')), PARTITION b VALUES LESS THAN MAXVALUE)",
        DAYS,
        "DROP PARTITION a",
    ),
    "columns": (
        "(id INT, at DATETIME) PARTITION BY RANGE COLUMNS (at) (PARTITION a VALUES LESS THAN "
        "('2020-01-01'), PARTITION b VALUES LESS THAN (MAXVALUE))",
        DAYS,
        "TRUNCATE PARTITION a",
    ),
    "subs": (
        "(id INT, at DATE) PARTITION BY RANGE (YEAR(at)) SUBPARTITION BY HASH (id) SUBPARTITIONS 2 "
        "(PARTITION a VALUES LESS THAN (2020), PARTITION b VALUES LESS THAN MAXVALUE)",
        DAYS,
        "TRUNCATE PARTITION a",
    ),
    "all_of_it": (
        "(id INT, v INT) PARTITION BY LIST (v) (PARTITION a VALUES IN (1, 5), PARTITION b VALUES IN (12, -7, 22, 4))",
        NUMBERS,
        "TRUNCATE PARTITION ALL",
    ),
    "rearranged": (
        f"(id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) {RANGE}",
        NUMBERS,
        "REORGANIZE PARTITION p0, p1 INTO (PARTITION p1 VALUES LESS THAN (3), PARTITION p3 VALUES LESS "
        "THAN (12)); DROP PARTITION p1; TRUNCATE PARTITION p2",
    ),
    "later": (
        "(id INT PRIMARY KEY, v INT)",
        NUMBERS,
        "PARTITION BY HASH (id) PARTITIONS 2; TRUNCATE PARTITION p1; REMOVE PARTITIONING",
    ),
}
# Their partitions cannot be told by their values here.
UNKNOWN = {
    "by_text": (
        "(id INT, c VARCHAR(9), PRIMARY KEY (id, c)) PARTITION BY RANGE COLUMNS (c) (PARTITION p0 VALUES "
        "LESS THAN ('m'), PARTITION p1 VALUES LESS THAN (MAXVALUE))",
        "(1, 'a'), (2, 'b'), (3, 'x')",
        "TRUNCATE PARTITION p0",
    ),
    "by_key": (
        "(id INT PRIMARY KEY, v INT) PARTITION BY KEY (id) PARTITIONS 2",
        NUMBERS,
        "TRUNCATE PARTITION p0",
    ),
    "linear": (
        "(id INT PRIMARY KEY, v INT) PARTITION BY LINEAR HASH (id) PARTITIONS 3",
        NUMBERS,
        "TRUNCATE PARTITION p1",
    ),
    "computed": (
        "(id INT PRIMARY KEY, v INT) PARTITION BY HASH (id MOD 4) PARTITIONS 2",
        NUMBERS,
        "TRUNCATE PARTITION p1",
    ),
}


@pytest.fixture(params=["mariadb_source", pytest.param("mysql", marks=pytest.mark.soak)])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    server: MariaDb = request.getfixturevalue(request.param)
    server.wipe()
    execute(server, "CREATE DATABASE fed CHARACTER SET utf8mb4")
    yield server
    server.wipe()


def test_rows_of_removed_partitions_stay_removed(
    source: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # S3-04 S4-22 R-34: audit, verify and repair know which rows the source removed with a partition
    at = {"name": "one", "host": source.host, "port": source.port}
    mirrored = {"mirror": {"enabled": True}}
    with FedCluster(tmp_path, source, [at]) as cluster:
        cluster.start_feeder()
        for name, (definition, values, _) in (TABLES | UNKNOWN).items():
            execute(source, f"CREATE TABLE fed.{name} {definition}", f"INSERT INTO fed.{name} VALUES {values}")
        cluster.follow(source)
        run_windows(cluster, target, **mirrored)
        before = contents(source, "fed")
        for name, (_, _, statements) in (TABLES | UNKNOWN).items():
            for statement in statements.split(";"):
                execute(source, f"ALTER TABLE fed.{name} {statement}")
        cluster.follow(source)
        run_windows(cluster, target, **mirrored)
        now = contents(source, "fed")
        assert all(len(now[name]) < len(before[name]) for name in now)
        assert contents(mariadb, "fed") == now

        replication = cluster.replication(target=target, **mirrored)
        found = verify(replication, VerifyOptions())
        assert {table.table for table in found.tables if table.inexact} == set(UNKNOWN)
        assert {table.inexact for table in found.tables if table.table in UNKNOWN} == {PARTITIONS}
        assert {table.table: table.structure for table in found.tables if table.structure} == {}
        assert found.differences == []
        # As after a difference by another cause: what is written is what the source has.
        execute(mariadb, *(f"DELETE FROM fed.{name}" for name in now))
        tables = list_tables_at(replication, LakePaths.of(replication), found.commit_ts)
        found = verify(replication, VerifyOptions())
        with build_settled_target(replication) as settled:
            done = repair_keys(replication, group_keys_by_table(found.differences, tables), settled)
        assert done.unknown == []
        assert contents(mariadb, "fed") == {name: [] if name in UNKNOWN else now[name] for name in now}


def test_rows_of_exchanged_and_converted_partitions_reach_the_target(
    source: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # R-34: no log has these rows' way from one table into the other; the target takes it, and the mirrors say so
    at = {"name": "one", "host": source.host, "port": source.port}
    mirrored = {"mirror": {"enabled": True}}
    with FedCluster(tmp_path, source, [at]) as cluster:
        cluster.start_feeder()
        execute(
            source,
            f"CREATE TABLE fed.p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id) {RANGE}",
            "CREATE TABLE fed.d (id INT PRIMARY KEY, v INT)",
            f"INSERT INTO fed.p VALUES {NUMBERS}",
            "INSERT INTO fed.d VALUES (0, 100), (-3, 100)",
        )
        cluster.follow(source)
        run_windows(cluster, target, **mirrored)
        execute(source, "ALTER TABLE fed.p EXCHANGE PARTITION p0 WITH TABLE fed.d", "INSERT INTO fed.d VALUES (70, 1)")
        execute(source, "UPDATE fed.d SET v = 9 WHERE id = 1", "DELETE FROM fed.p WHERE id = -3")
        names = {"p", "d"}
        if source.name == "mariadb":
            execute(source, "ALTER TABLE fed.p CONVERT PARTITION p1 TO TABLE fed.e", "UPDATE fed.e SET v = 8")
            execute(source, "DELETE FROM fed.d WHERE id = 70", "INSERT INTO fed.d VALUES (33, 3)")
            names |= {"e"}
        cluster.follow(source)
        run_windows(cluster, target, **mirrored)
        now = contents(source, "fed")
        assert set(now) == names
        assert contents(mariadb, "fed") == now
        found = verify(cluster.replication(target=target, **mirrored), VerifyOptions())
        assert {table.table: table.inexact for table in found.tables} == dict.fromkeys(names, PARTITIONS)
        assert found.differences == []
