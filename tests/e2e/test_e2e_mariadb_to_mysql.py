"""What a MariaDB has of texts and generated columns, at a MySQL that writes it differently or does not have it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.feeding import FedCluster
from support.feedload import run_windows
from support.mariadb import MariaDb, MySql, execute, rows

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

CREATED = (
    "CREATE TABLE fed.t (id INT PRIMARY KEY, a TEXT DEFAULT 'ä', b BLOB NOT NULL DEFAULT 'b', c VARCHAR(40), d INT,"
    " v TINYINT AS (d IS NULL) VIRTUAL, s TINYINT AS (d IS NULL) STORED COMMENT 'c', KEY ka (a), UNIQUE KEY ua (a),"
    " UNIQUE KEY ub (id, b), KEY kc (c), UNIQUE KEY uc (c), KEY (v), KEY (s))",
    "INSERT INTO fed.t (id, c, d) VALUES (1, 'x', NULL)",
    "INSERT INTO fed.t (id, a, b, c, d) VALUES (2, REPEAT('y', 3000), 'z', 'q', 3)",
)
ALTERED = (
    "ALTER TABLE fed.t RENAME COLUMN d TO e",
    "ALTER TABLE fed.t CHANGE e f BIGINT FIRST, ADD INDEX (b)",
    "ALTER TABLE fed.t ADD h TEXT NOT NULL DEFAULT 'h', ADD UNIQUE uh (h, id), ADD KEY (h)",
    "ALTER TABLE fed.t ALTER a SET DEFAULT 'ö', ALTER b DROP DEFAULT, ALTER COLUMN h SET DEFAULT 'i'",
    "INSERT INTO fed.t (id, b, c) VALUES (3, 'b3', 'c3')",
    "ALTER TABLE fed.t MODIFY c TEXT",
    "ALTER TABLE fed.t DROP INDEX ub, DROP INDEX ka",
    "CREATE UNIQUE INDEX ub ON fed.t (b)",
    "DROP INDEX ub ON fed.t",
    "UPDATE fed.t SET c = 'long' WHERE id = 1",
    "ALTER TABLE fed.t MODIFY c VARCHAR(9), MODIFY a VARCHAR(20) DEFAULT NULL",
    "INSERT INTO fed.t (id, b) VALUES (4, 'b4')",
)
INDEXES = (
    "SELECT index_name, MIN(non_unique), GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM"
    " information_schema.statistics WHERE table_schema = 'fed' GROUP BY index_name ORDER BY index_name"
)


def test_texts_and_renames_of_a_mariadb_arrive_at_a_mysql(
    mariadb_source: MariaDb, mysql: MySql, tmp_path: Path
) -> None:
    # R-18 S4-02: drawn sources
    to = {"host": mysql.host, "port": mysql.port, "user": "root", "db-type": "mysql"}
    for server in (mariadb_source, mysql):
        server.wipe()
    lenient = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    execute(mariadb_source, lenient, "CREATE DATABASE fed CHARACTER SET utf8mb4")
    place = {"name": "one", "host": mariadb_source.host, "port": mariadb_source.port}
    with FedCluster(tmp_path, mariadb_source, [place]) as cluster:
        cluster.start_feeder()
        for number, text in enumerate((*CREATED, *ALTERED)):
            execute(mariadb_source, lenient, text)
            if number % 4 == 1:
                cluster.follow(mariadb_source)
                run_windows(cluster, to, mirror={"enabled": True})
                assert read(mysql) == read(mariadb_source), text
        cluster.follow(mariadb_source)
        run_windows(cluster, to, mirror={"enabled": True})
        assert read(mysql) == read(mariadb_source)
        lacking = [index for index in rows(mariadb_source, INDEXES) if index not in rows(mysql, INDEXES)]
        assert [name for name, *_ in lacking] == ["uh"]
    mysql.wipe()


def read(server: MariaDb) -> list[tuple[Any, ...]]:
    return rows(server, "SELECT * FROM fed.t ORDER BY id")
