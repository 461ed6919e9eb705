"""Stored generated columns of MySQL and MariaDB sources at a MariaDB: each has the source's value, whoever computes it.

A matrix of expressions that the servers compute differently, or that a strict server refuses to compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.feeding import FedCluster
from support.feedload import run_windows
from support.hostile import hostile
from support.mariadb import MariaDb, execute, mysql_in_memory, rows

from binlake.errors import ConfigError, TargetRefused
from binlake.repair.tableback import bring_table_back

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

BASE = (
    "id INT PRIMARY KEY, l VARCHAR(40) CHARACTER SET latin1, v VARCHAR(40), d DECIMAL(12,2), f FLOAT, n DOUBLE, s"
    " SMALLINT, u INT UNSIGNED, b BIGINT, tm TIME(3), at DATETIME(3), day DATE, ts TIMESTAMP(3) NULL,"
    " j JSON, x VARBINARY(20), c CHAR(9)"
)
ROWS = (
    "(1, 'é', 'ü', 1.00, 0.1, 0.1, 1, 1, 1, '01:02:03.5', '2020-02-03 04:05:06.789', '2020-02-03',"
    " '2020-02-03 04:05:06.789', '{\"a\": [1, 2.5], \"b\": null}', 'ab')",
    "(2, 'ÄÖ', '12abc', 10.10, 1e20, 1e20, -32768, 4294967295, -9223372036854775808, '-838:59:59', '0000-00-00',"
    " '0000-00-00', NULL, '[]', X'00FF')",
    "(3, '', ' 7', -0.01, 1234567, 123456789012345680, 32767, 0, 9223372036854775807, '00:00:00',"
    " '9999-12-31 23:59:59', '2020-02-00', '1970-01-01 00:00:01', '\"x\"', '')",
    f"(4{', NULL' * 14})",
)
"""Rows that a session without a strict sql_mode accepts."""
COMPUTED = {
    "p1": "BIGINT AS (id + 1)",
    "p2": "INT AS (s * 2 - 1)",
    "p3": "TINYINT AS (v IS NULL)",
    "p4": "BIGINT AS (u + 1)",
    "p5": "TINYINT AS (id > 2 AND s < 5 OR j IS NOT NULL)",
    "p6": "INT AS (YEAR(at) * 100 + MONTH(at))",
    "p7": "INT AS (IFNULL(s, 0))",
    "p8": "INT AS (HOUR(at) * 10000 + MINUTE(at) * 100 + SECOND(at))",
    "p9": "TINYINT AS (DAYOFMONTH(day))",
    "p10": "INT AS (IF(v IS NULL, -1, s))",
    "p11": "TINYINT AS (NOT id = 3)",
    "p12": "INT AS (COALESCE(s, id))",
    "p14": "TINYINT AS (d IS NOT NULL)",
}
"""What the target computes itself."""
WRITTEN = {
    "w1": "INT AS (LENGTH(l))",
    "w2": "VARCHAR(90) AS (HEX(l))",
    "w4": "BIGINT AS (CRC32(l))",
    "w5": "INT AS (ASCII(l))",
    "w6": "VARCHAR(40) AS (d / 3)",
    "w7": "VARCHAR(60) AS (CONCAT(n))",
    "w8": "VARCHAR(60) AS (CONCAT(f, ':', v))",
    "w9": "VARCHAR(40) AS (CEIL(d))",
    "w10": "VARCHAR(40) AS (tm + 0)",
    "w11": "VARCHAR(40) AS (at + 0)",
    "w12": "INT AS (id + 2147483646)",
    "w13": "VARCHAR(3) AS (CONCAT(v, v))",
    "w14": "VARCHAR(99) AS (CONCAT(l, v))",
    "w15": "VARCHAR(20) AS (JSON_TYPE(JSON_EXTRACT(j, '$.b')))",
    "w16": "VARCHAR(60) AS (JSON_UNQUOTE(JSON_EXTRACT(j, '$.a')))",
    "w17": "TINYINT AS (JSON_CONTAINS(j, '1', '$.a'))",
    "w18": "VARCHAR(20) AS (UPPER(l))",
    "w19": "INT AS (CHAR_LENGTH(v))",
    "w20": "DECIMAL(20,6) AS (d / 7)",
    "w21": "DOUBLE AS (n * 3)",
    "w22": "FLOAT AS (f / 3)",
    "w23": "VARCHAR(60) AS (SUBSTRING(l, 1, 1))",
    "w24": "TINYINT AS (v = 'Ü')",
    "w25": "SMALLINT AS (-s)",
    "w26": "INT AS (id % 2)",
    "w27": "DECIMAL(9,3) AS (ROUND(d, 1))",
    "w28": "VARCHAR(20) AS (LPAD(id, 5, '0'))",
    "w29": "INT AS (DATEDIFF(day, '2020-01-01'))",
    "w30": "VARBINARY(60) AS (CONCAT(x, l))",
    "w31": "VARCHAR(99) AS (REPLACE(l, 'é', 'e'))",
    "w32": "INT AS (HOUR(ts))",
    "w33": "VARCHAR(40) AS (GREATEST(d, id))",
    "w34": "TIME(3) AS (tm)",
    "w35": "DATE AS (at)",
    "w36": "INT AS (tm)",
}
"""What it gets from the log: servers differ, or one of them refuses to compute it in a strict session."""
FILLED = (
    "id INT PRIMARY KEY, a INT, b INT, c INT, g VARCHAR(20) AS (HEX(a)) STORED, h TINYINT AS (b IS NULL) STORED,"
    " i VARCHAR(20) AS (HEX(c)) STORED"
)
THROUGH = "h INT AS (HOUR(ts)) VIRTUAL, g INT AS (h + 1) STORED, n TINYINT AS (h IS NULL) STORED"
OF_MYSQL = {
    "m1": "VARCHAR(40) AS (DATE_FORMAT(at, '%W %M'))",
    "m2": "INT AS (v + 0)",
    "m3": "VARCHAR(60) AS (n)",
    "m4": "VARCHAR(90) AS (at)",
    "m5": "JSON AS (JSON_OBJECT('s', s, 'v', v))",
    "m6": "VARCHAR(40) AS (j->>'$.a[1]')",
    "m7": "DECIMAL(5,1) AS (v)",
    "m8": "TINYINT AS (c IS NULL)",
}
"""As WRITTEN; MariaDB stores no such column (errors 1901, 1064)."""
OF_MARIADB = {"a1": "CHAR(32) AS (MD5(l))", "a2": "VARCHAR(40) AS (SHA1(v))", "a3": "INT AS (MONTH(day) - YEAR(day))"}
"""As WRITTEN; MySQL has no such column."""


@contextmanager
def feed_family(family: str, one: MariaDb, mariadb: MariaDb, folder: Path) -> Iterator[tuple[FedCluster, MariaDb]]:
    """A feeder that reads `one`, and an empty target of the same family: `mariadb`, or a MySQL of its own."""
    with ExitStack() as stack:
        target = mariadb if family == "mariadb" else stack.enter_context(mysql_in_memory())
        cluster = stack.enter_context(FedCluster(folder, one, [{"name": "one", "host": one.host, "port": one.port}]))
        cluster.start_feeder()
        yield cluster, target


@pytest.fixture(params=["mariadb_source", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    server: MariaDb = request.getfixturevalue(request.param)
    server.wipe()
    execute(server, "CREATE DATABASE fed CHARACTER SET utf8mb4")
    yield server
    server.wipe()


def test_stored_columns_have_the_sources_values(
    source: MariaDb, target: dict[str, Any], mariadb: MariaDb, tmp_path: Path
) -> None:
    # R-29 S4-26
    lenient = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    written = WRITTEN | (OF_MYSQL if source.name == "mysql" else OF_MARIADB)
    columns = ", ".join(f"{name} {text} STORED" for name, text in (COMPUTED | written).items())
    insert = "INSERT INTO fed.{} (id, l, v, d, f, n, s, u, b, tm, at, day, ts, j, x) VALUES {}"
    with FedCluster(tmp_path, source, [{"name": "one", "host": source.host, "port": source.port}]) as cluster:
        cluster.start_feeder()
        execute(
            source,
            lenient,
            "USE fed",
            f"CREATE TABLE fed.t ({BASE}, {columns}, KEY (w1), UNIQUE KEY (w2, id))",
            *(insert.format("t", row) for row in ROWS),
            "UPDATE fed.t SET v = 'x', l = 'ß', c = 'y' WHERE id = 1",
            "CREATE TABLE fed.alike LIKE fed.t",
            insert.format("alike", ROWS[1]),
            # Values that are computed once at the target, and come from the log from then on.
            f"CREATE TABLE fed.later ({BASE})",
            *(insert.format("later", row) for row in ROWS),
            "ALTER TABLE fed.later ADD g INT AS (id + 5) STORED, ADD y INT AS (s + 1) STORED UNIQUE",
            "UPDATE fed.later SET id = 2147483647 WHERE id = 3",
            "ALTER TABLE fed.later MODIFY g INT",
            "UPDATE fed.later SET g = 9 WHERE id = 1",
            f"CREATE TABLE fed.filled ({FILLED})",
            "INSERT INTO fed.filled (id, a, b, c) VALUES (1, 5, NULL, NULL), (2, 6, 7, 8)",
            # The virtual column is computed in the zone of each writer, and the stored one with it.
            f"CREATE TABLE fed.through (id INT PRIMARY KEY, ts TIMESTAMP NULL, {THROUGH})",
            "SET time_zone = '+05:00'",
            "INSERT INTO fed.through (id, ts) VALUES (1, '2020-06-01 12:00:00'), (2, NULL)",
            "SET time_zone = '+00:00'",
            # No row has NULL; the target computes `h` itself.
            "ALTER TABLE fed.filled MODIFY a INT NOT NULL, MODIFY b INT NOT NULL",
        )
        cluster.follow(source)
        with capture_logs() as logs:
            run_windows(cluster, target, mirror={"enabled": True})
        said = {line["table"]: set(line["columns"]) for line in logs if line["event"] == "generated_columns_from_log"}
        assert said == {"fed.t": set(written), "fed.alike": set(written), "fed.later": {"g"}, "fed.filled": {"g", "i"},
                        "fed.through": {"g", "n"}}  # fmt: skip
        for name in ("t", "alike", "later", "filled"):
            assert read_values(mariadb, name) == read_values(source, name)
        through = "SELECT id, g, n FROM fed.through ORDER BY id"
        assert rows(mariadb, through) == rows(source, through) == [(1, 13, 0), (2, None, 1)]
        computed = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'fed' AND table_name = 't'"
        found = {name for (name,) in rows(mariadb, f"{computed} AND extra LIKE '%%GENERATED%%'")}
        assert found == set(COMPUTED)

        execute(source, lenient, "ALTER TABLE fed.filled MODIFY c INT NOT NULL")
        cluster.follow(source)
        with pytest.raises(TargetRefused, match=r"computed the stored generated column i anew .* c was NULL .*aside"):
            run_windows(cluster, target)
        assert [value for (value,) in rows(source, "SELECT i FROM fed.filled ORDER BY id")] == ["0", "8"]


ANEW = {
    "read": (
        f"{BASE}, g VARCHAR(90) AS (HEX(v)) STORED, h VARCHAR(9) AS (UPPER(v)) STORED, KEY (g)",
        "MODIFY v VARCHAR(9) CHARACTER SET latin1 FIRST",
    ),
    "own": (
        f"{BASE}, g VARCHAR(90) AS (HEX(v)) STORED",
        "MODIFY g VARCHAR(60) AS (CONCAT(v, l)) STORED COMMENT 'c' FIRST",
    ),
    "named": (
        f"{BASE}, g VARCHAR(90) AS (HEX(v)) STORED",
        "CHANGE g h INT AS (LENGTH(l)) STORED, RENAME COLUMN d TO e",
    ),
    "converted": (
        f"{BASE}, g VARCHAR(90) AS (HEX(v)) STORED, KEY g (g)",
        "CONVERT TO CHARACTER SET latin1, ADD KEY h (g, id)",
    ),
    "cut": (
        f"{BASE}, g VARCHAR(90) AS (HEX(d)) STORED, h VARCHAR(2) AS (HEX(v)) STORED",
        "MODIFY d INT, MODIFY v VARCHAR(3)",
    ),
    "begun": (f"{BASE}, g VARCHAR(90) AS (HEX(v)) STORED", "MODIFY g TINYINT AS (v IS NULL) STORED FIRST"),
    "begun_by": (f"{BASE}, g INT AS (u + 1) STORED, KEY (g)", "MODIFY u SMALLINT UNSIGNED"),
    "ceased": (f"{BASE}, g TINYINT AS (v IS NULL) STORED", "MODIFY g VARCHAR(90) AS (HEX(v)) STORED"),
    "ceased_by": (f"{BASE}, g INT AS (s + 1) STORED, KEY (g)", "MODIFY s INT"),
    "made": (f"{BASE}, g VARCHAR(90)", "MODIFY g VARCHAR(2) AS (HEX(v)) STORED"),
}
"""Tables with an ALTER that computes their stored columns anew in a lenient session."""


@pytest.mark.parametrize("family", ["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def test_columns_computed_anew_have_the_sources_values_at_a_target_of_its_family(
    family: str, request: pytest.FixtureRequest, empty_mariadb: MariaDb, tmp_path: Path
) -> None:
    # drawn sources
    one: MariaDb = request.getfixturevalue("mariadb_source" if family == "mariadb" else "mysql")
    one.wipe()
    with feed_family(family, one, empty_mariadb, tmp_path) as (cluster, target):
        lenient = "SET SESSION sql_mode = '', time_zone = '+00:00'"
        insert = "INSERT INTO fed.{} (id, l, v, d, f, n, s, u, b, tm, at, day, ts, j, x) VALUES {}"
        execute(
            one,
            lenient,
            "CREATE DATABASE fed CHARACTER SET utf8mb4",
            *(
                text
                for name, (columns, _) in ANEW.items()
                for text in (
                    f"CREATE TABLE fed.{name} ({columns})",
                    insert.format(name, ROWS[0]),
                    insert.format(name, ROWS[1]),
                )
            ),
        )
        cluster.follow(one)
        to = {"host": target.host, "port": target.port, "user": "root", "db-type": family}
        run_windows(cluster, to)
        changed = "UPDATE fed.{} SET v = 'q', l = 'r' WHERE id = 1"
        execute(
            one,
            lenient,
            *(
                text
                for name, (_, alter) in ANEW.items()
                for text in (f"ALTER TABLE fed.{name} {alter}", changed.format(name))
            ),
        )
        cluster.follow(one)
        run_windows(cluster, to)
        for name in ANEW:
            assert read_values(target, name) == read_values(one, name), name
            assert read_columns(target, name) == read_columns(one, name), name
        execute(one, lenient, "ALTER TABLE fed.read ADD i VARCHAR(90) AS (HEX(ts)) STORED")
        cluster.follow(one)
        with pytest.raises(TargetRefused, match="only the source can compute: it depends on the time zone"):
            run_windows(cluster, to)
    one.wipe()


UNLOGGED = {"mysql": "DATE_FORMAT(at, '%W')", "mariadb": "REGEXP_REPLACE('a b', ' ', '')"}
"""As `d / 3`: it depends on a variable of the source's session that no log has (lc_time_names, default_regex_flags)."""


@pytest.mark.parametrize("family", [pytest.param("mariadb", marks=pytest.mark.soak), "mysql"])
def test_values_that_a_variable_of_the_session_made_are_not_computed_again(
    family: str, request: pytest.FixtureRequest, empty_mariadb: MariaDb, tmp_path: Path
) -> None:
    # R-34 R-29: all globals of the source are hostile
    one: MariaDb = request.getfixturevalue("mariadb_source" if family == "mariadb" else "mysql")
    one.wipe()
    columns = f"ADD g VARCHAR(40) AS (d / 3) STORED, ADD h VARCHAR(40) AS ({UNLOGGED[family]}) STORED"
    made = "(id INT PRIMARY KEY, d DECIMAL(12,2), at DATETIME, tm TIME(3), c CHAR(5))"
    mode = "TIME_ROUND_FRACTIONAL" if family == "mariadb" else "TIME_TRUNCATE_FRACTIONAL,PAD_CHAR_TO_FULL_LENGTH"
    # A MariaDB stores no column whose values depend on its modes (error 1901).
    moded = (
        "g INT AS (id + 1)" if family == "mariadb" else "g TIME AS (tm) STORED, ADD h VARCHAR(9) AS (CONCAT(c, '.'))"
    )
    with feed_family(family, one, empty_mariadb, tmp_path) as (cluster, target):
        execute(one, "CREATE DATABASE fed CHARACTER SET utf8mb4")
        with hostile(one) as session, session.cursor() as cursor:
            of_servers = "div_precision_increment", "lc_time_names"
            cursor.execute("SET " + ", ".join(f"{name} = @@GLOBAL.{name}" for name in of_servers))
            for text in (
                f"CREATE TABLE fed.empty {made}",
                f"ALTER TABLE fed.empty {columns}",
                "INSERT INTO fed.empty (id, d, at) VALUES (1, 10, '2021-03-03')",
                f"CREATE TABLE fed.moded {made}",
                "INSERT INTO fed.moded (id, tm, c) VALUES (1, '01:02:03.9', 'a')",
                f"SET sql_mode = 'STRICT_ALL_TABLES,{mode}'",
                f"ALTER TABLE fed.moded ADD {moded} STORED",
                f"CREATE TABLE fed.full {made}",
                "INSERT INTO fed.full (id, d, at) VALUES (1, 10, '2021-03-03')",
            ):
                cursor.execute(text)
        cluster.follow(one)
        to = {"host": target.host, "port": target.port, "user": "root", "db-type": family}
        run_windows(cluster, to)
        assert read_values(target, "empty") == read_values(one, "empty")
        if family == "mysql":  # a MariaDB computes it as the session did that opened the table first
            assert read_values(target, "empty")[1, "g"] == "3.33"
        # sql_mode is in the log: times are rounded as there, and texts have the same spaces.
        assert read_values(target, "moded") == read_values(one, "moded")
        with hostile(one) as session, session.cursor() as cursor:
            cursor.execute("SET " + ", ".join(f"{name} = @@GLOBAL.{name}" for name in of_servers))
            cursor.execute(f"ALTER TABLE fed.full {columns}")
        cluster.follow(one)
        with pytest.raises(TargetRefused, match=r"column g with its session's div_precision_increment.*aside"):
            run_windows(cluster, to)
    one.wipe()


@pytest.mark.parametrize("family", ["mariadb", pytest.param("mysql", marks=pytest.mark.soak)])
def test_ways_on_where_a_variable_of_the_session_is_not_in_the_log(
    family: str, request: pytest.FixtureRequest, empty_mariadb: MariaDb, tmp_path: Path
) -> None:
    """R-34: a division in a new column stops; the declared default goes on, at any time, and so does a table aside."""
    one: MariaDb = request.getfixturevalue("mariadb_source" if family == "mariadb" else "mysql")
    one.wipe()
    divided = "ADD g DECIMAL(20,6) AS (d / 3) STORED, ADD h VARCHAR(40) DEFAULT (10 / 3)"
    with feed_family(family, one, empty_mariadb, tmp_path) as (cluster, target):
        execute(one, "CREATE DATABASE fed CHARACTER SET utf8mb4")
        to = {"host": target.host, "port": target.port, "user": "root", "db-type": family}
        given = cluster.replication().source.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        mirror = {"mirror": {"enabled": True}}
        declared = {**given, "session-variables": "default"}

        def alter(table: str) -> None:
            execute(
                one,
                f"CREATE TABLE fed.{table} (id INT PRIMARY KEY, d DECIMAL(12,2))",
                f"INSERT INTO fed.{table} VALUES (1, 10), (2, 20)",
                f"ALTER TABLE fed.{table} {divided}",
                f"UPDATE fed.{table} SET d = 7 WHERE id = 2",
            )
            cluster.follow(one)

        def equal(table: str) -> bool:
            return read_values(target, table) == read_values(one, table)

        alter("late")
        for _ in range(2):
            with pytest.raises(TargetRefused, match=r"div_precision_increment.*session-variables.*aside"):
                run_windows(cluster, to, **mirror)
        run_windows(cluster, to, source=declared, **mirror)
        assert equal("late")
        run_windows(cluster, to, **mirror)  # the setting is taken back
        alter("early")
        run_windows(cluster, to, source=declared, **mirror)
        assert equal("early")
        for name in ("first", "second"):
            alter(name)
            run_windows(cluster, {**to, "on-table-error": "set-aside"}, **mirror)
            # As a person copies the table: with plain columns instead of generated ones.
            execute(target, f"DROP TABLE fed.{name}", f"CREATE TABLE fed.{name} LIKE fed.early")
            for row in rows(one, f"SELECT id, d, g, h FROM fed.{name}"):
                execute(target, f"INSERT INTO fed.{name} (id, d, g, h) VALUES ({', '.join(map(repr, map(str, row)))})")
            bring_table_back(cluster.replication(target=to, **mirror), ("fed", name), rows_are_there=True)
            execute(one, f"INSERT INTO fed.{name} (id, d) VALUES (3, 5)")
            cluster.follow(one)
            run_windows(cluster, to, **mirror)
            assert equal(name)
        alter("third")
        execute(one, "ALTER TABLE fed.third ADD i DECIMAL(20,6) AS (d / 7) STORED")
        cluster.follow(one)
        run_windows(cluster, {**to, "on-table-error": "set-aside"}, **mirror)
        execute(target, "DROP TABLE fed.third", "CREATE TABLE fed.third LIKE fed.early")
        execute(target, "ALTER TABLE fed.third ADD i DECIMAL(20,6)")
        # No log has what the second ALTER computed in the row that changed before it.
        with pytest.raises(ConfigError, match="rows that changed between when it was set aside and its last DDL"):
            bring_table_back(cluster.replication(target=to, **mirror), ("fed", "third"), rows_are_there=True)
    one.wipe()


def read_columns(server: MariaDb, table: str) -> list[tuple[Any, ...]]:
    """The names, types and comments of a table's columns, in order."""
    shown = "column_name, column_type, column_comment, character_set_name"
    return rows(
        server,
        f"SELECT {shown} FROM information_schema.columns WHERE table_schema = 'fed' AND table_name = %s"
        " ORDER BY ordinal_position",
        (table,),
    )


def read_values(server: MariaDb, table: str) -> dict[tuple[int, str], object]:
    """The values of `table` by id and column."""
    names = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'fed' AND table_name = %s"
    columns = [name for (name,) in rows(server, f"{names} ORDER BY ordinal_position", (table,))]
    found = rows(server, f"SELECT * FROM fed.{table}")
    return {(row[0], name): value for row in found for name, value in zip(columns, row, strict=True)}
