"""Expressions of columns are read as the server computes them: MySQL's information_schema escapes their quotes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.followed import COPY, Followed
from support.mariadb import MariaDb, execute, rows

from binlake.mysqlbinlog.model import Flavor

pytestmark = pytest.mark.mariadb

CASES = (
    "VARCHAR(40) DEFAULT (CONCAT('a', 'b'))",
    "VARCHAR(40) NOT NULL DEFAULT (CONCAT('it''s', \"ä\", ' ?'))",
    r"VARCHAR(40) DEFAULT (REPLACE('a\\b\n%', '%', CHAR(39)))",
    "VARCHAR(40) DEFAULT (HEX('ä'))",
    "VARBINARY(40) DEFAULT (CONCAT(X'00FF', '\\'', 'é'))",
    "DATETIME DEFAULT (STR_TO_DATE('2021-03-04', '%Y-%m-%d'))",
    "INT DEFAULT (ASCII('('))",
    "INT DEFAULT (`it's ä` + 1)",
    "VARCHAR(40) DEFAULT (HEX(CAST(ASCII('a') AS CHAR)))",
    "INT DEFAULT (CAST(ASCII('a') AS CHAR(9)) = '97')",
    "VARCHAR(40) CHARACTER SET latin1 DEFAULT (CAST('é' AS CHAR(9) CHARACTER SET latin1))",
    "VARCHAR(40) AS (CONCAT(CAST(id AS CHAR), '''ä')) VIRTUAL",
    "VARCHAR(40) AS (CAST(id AS CHAR(9) CHARACTER SET latin1)) VIRTUAL",
    "INT DEFAULT (LENGTH('ä'))",
    "VARCHAR(40) DEFAULT 'b'",
)


@pytest.fixture(params=[Flavor.MARIADB, Flavor.MYSQL], ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    copy = Followed(server, request.param)
    copy.run("CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", db="")
    yield copy
    copy.close()


def test_old_and_new_rows_get_the_values_of_a_new_columns_expression(followed: Followed) -> None:
    #
    server = followed.server
    followed.run("CREATE TABLE t (id INT PRIMARY KEY, `it's ä` INT)")
    execute(server, "INSERT INTO shop.t VALUES (1, 4)", f"INSERT INTO {COPY}shop.t VALUES (1, 4)")
    for number, case in enumerate(CASES):
        followed.run(f"ALTER TABLE t ADD c{number} {case}")
    followed.restarted()
    table = followed.catalog.find_table(followed.source, "shop", "t")
    assert table is not None
    for db in ("shop", COPY + "shop"):
        execute(server, f"INSERT INTO {db}.t (id, `it's ä`) VALUES (2, 5)")
    for number, case in enumerate(CASES):
        query = f"SELECT HEX(c{number}) FROM %s.t ORDER BY id"
        assert rows(server, query % (COPY + "shop")) == rows(server, query % "shop"), case
        column = table.find_column(f"c{number}")
        assert column is not None
        if column.default_is_expr:
            differs = f"SELECT 1 FROM shop.t WHERE id = 2 AND NOT c{number} <=> ({column.default})"
            assert rows(server, differs) == [], (case, column.default)
