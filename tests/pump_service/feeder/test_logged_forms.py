"""Forms of statements in the logs of real servers: after the feeder applies them, the copy equals the source.

Random statements, too: DDL in unusual sessions, transactions of every kind, temporary tables, XA.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pymysql
import pytest
from support.loggedcopy import LoggedCopy
from support.mariadb import MariaDb, execute, mariadb_in_memory
from support.sourcelog import transactions_until_now

from binlake.errors import SchemaError

pytestmark = [pytest.mark.mariadb, pytest.mark.long]

ROWS = "INSERT INTO {} VALUES (1, 'a', 1), (2, 'b', 2)"
BOTH = (
    # Lists of partitions; names that are keywords of other clauses.
    "CREATE TABLE p (id INT PRIMARY KEY, w INT) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),"
    " PARTITION comment VALUES LESS THAN (20), PARTITION password VALUES LESS THAN (30),"
    " PARTITION pm VALUES LESS THAN MAXVALUE)",
    "INSERT INTO p VALUES (1, 1), (11, 1), (22, 2), (33, 3)",
    "ALTER TABLE p DROP PARTITION p0, password",
    "ALTER TABLE p REORGANIZE PARTITION comment, pm INTO (PARTITION c0 VALUES LESS THAN (20), PARTITION mid VALUES"
    " LESS THAN (30), PARTITION rest VALUES LESS THAN MAXVALUE)",
    "ALTER TABLE p REBUILD PARTITION c0, rest",
    "ALTER TABLE p TRUNCATE PARTITION c0, mid",
    # CHECK: the target never has it, however it is dropped.
    "CREATE TABLE c (b INT, CONSTRAINT b_is CHECK (b <> 1))",
    "ALTER TABLE c ADD CONSTRAINT more CHECK (b <> 2), ADD UNIQUE KEY only_one (b)",
    "ALTER TABLE c DROP CONSTRAINT b_is, DROP CONSTRAINT more",
    "INSERT INTO c VALUES (1), (2)",
    "ALTER TABLE c DROP CONSTRAINT only_one",
    "INSERT INTO c VALUES (1)",
    # Views are renamed with the same statement as tables.
    "CREATE VIEW v AS SELECT 1 AS one",
    "RENAME TABLE v TO w, c TO cc",
    "INSERT INTO cc VALUES (7)",
    "ALTER TABLE cc ADD x INT DEFAULT 3, RENAME TO cc",
    # The time of a session in another time zone.
    "CREATE TABLE clock (id INT PRIMARY KEY)",
    "INSERT INTO clock VALUES (1)",
    "SET time_zone = '+05:00', timestamp = 1700000000.123456",
    "ALTER TABLE clock ADD at DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)",
    "ALTER TABLE clock ADD a DATETIME DEFAULT CURRENT_TIMESTAMP, ADD b TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP",
    "ALTER TABLE clock MODIFY at TIMESTAMP(3) NULL",
    "SET time_zone = DEFAULT, timestamp = DEFAULT",
    # Servers show these characters as `?`.
    "CREATE TABLE four (id INT PRIMARY KEY, v VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT '🐬?')",
    "INSERT INTO four (id) VALUES (1)",
    r"ALTER TABLE four ADD w VARCHAR(9) CHARACTER SET utf8mb4 NOT NULL DEFAULT 'it''s \\ ?😀' COMMENT 'DEFAULT 🐬'",
    "ALTER TABLE four ADD x VARCHAR(9) DEFAULT '?', ADD e ENUM('🐬', '?') CHARACTER SET utf8mb4 DEFAULT '🐬'",
    "ALTER TABLE four MODIFY v VARCHAR(20) CHARACTER SET utf8mb4 DEFAULT '🐬' FIRST",
    # Names.
    "CREATE TABLE `t``q` (`x.y` INT, `select` INT)",
    "INSERT INTO `t``q` VALUES (1, 2)",
    "ALTER TABLE `t``q` ADD `ä ö` INT DEFAULT 4",
)
MARIADB = (
    "CREATE TABLE s (id INT PRIMARY KEY, v VARCHAR(9), u INT)",
    ROWS.format("s"),
    "CREATE TABLE s2 LIKE s",
    ROWS.format("s2"),
    "SET STATEMENT lock_wait_timeout = 5, max_statement_time = (1 + 1) FOR TRUNCATE TABLE s",
    "SET STATEMENT lock_wait_timeout = 5 FOR DROP TABLE s2",
    "SET STATEMENT time_zone = '+03:00' FOR ALTER TABLE s ADD ts TIMESTAMP DEFAULT '2020-01-01 03:00:00'",
    "INSERT INTO s (id) VALUES (4)",
    "CREATE DATABASE again",
    "CREATE TABLE again.a (id INT)",
    "INSERT INTO again.a VALUES (1)",
    "CREATE OR REPLACE DATABASE again CHARACTER SET latin1",
    "CREATE TABLE again.a (v TEXT)",
    "INSERT INTO again.a VALUES ('ä')",
    "CREATE SEQUENCE q",
    "SELECT NEXTVAL(q), SETVAL(q, 100)",
    "RENAME TABLE IF EXISTS q TO qq, none_such TO n, s TO s3",
    "SELECT NEXTVAL(qq)",
    "DROP SEQUENCE qq",
    "INSERT INTO s3 (id) VALUES (5)",
)


@pytest.fixture(params=["mariadb_source", "mysql"])
def copy(request: pytest.FixtureRequest) -> Iterator[LoggedCopy]:
    server: MariaDb = request.getfixturevalue(request.param)
    server.wipe()
    execute(server, "CREATE DATABASE shop")
    logged_copy = LoggedCopy(server)
    logged_copy.adopt()
    yield logged_copy
    logged_copy.close()


def run(server: MariaDb, *statements: str) -> None:
    execute(server, "USE shop", *statements)


def test_logged_forms_lead_to_the_tables_of_the_source(copy: LoggedCopy) -> None:  # S4-22 S4-23
    run(copy.server, *BOTH, *(MARIADB if copy.server.name == "mariadb" else ()))
    copy.catch_up()
    assert copy.differences("shop") == []
    if copy.server.name == "mariadb":
        assert copy.differences("again") == []


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_hashes_of_unique_keys_over_long_texts_are_skipped(mariadb_source: MariaDb, metadata: str) -> None:
    mariadb_source.wipe()
    execute(mariadb_source, "CREATE DATABASE shop", f"SET GLOBAL binlog_row_metadata = {metadata}")
    copy = LoggedCopy(mariadb_source)
    try:
        copy.adopt()
        run(
            mariadb_source,
            "CREATE TABLE h (id INT PRIMARY KEY, a TEXT, b TEXT, g INT AS (id + 1) VIRTUAL, UNIQUE (a), UNIQUE (b, a))",
            "INSERT INTO h (id, a, b) VALUES (1, 'x', 'yy'), (2, NULL, 'z'), (3, 'w', NULL)",
            "UPDATE h SET a = 'k', id = 7 WHERE id = 1",
            "ALTER TABLE h ADD c VARCHAR(3000) UNIQUE, DROP INDEX a",
            "INSERT INTO h (id, a, b, c) VALUES (4, 'x', 'yy', 'c')",
            "DELETE FROM h WHERE id = 2",
            "ALTER TABLE h DROP INDEX b, DROP INDEX c",
            "UPDATE h SET c = 'd'",
            "CREATE TABLE m (id INT PRIMARY KEY, a INT, UNIQUE (a) USING HASH) ENGINE = MEMORY",
            "INSERT INTO m VALUES (1, 1)",
        )
        copy.catch_up()
        assert copy.differences("shop") == []
    finally:
        execute(mariadb_source, "SET GLOBAL binlog_row_metadata = FULL")
        copy.close()


def test_a_row_of_a_sequence_is_recognised_without_column_names(mariadb_source: MariaDb) -> None:
    mariadb_source.wipe()
    execute(mariadb_source, "CREATE DATABASE shop", "SET GLOBAL binlog_row_metadata = NO_LOG")
    copy = LoggedCopy(mariadb_source)
    try:
        copy.adopt()
        run(mariadb_source, "CREATE SEQUENCE q", "SELECT NEXTVAL(q)", "CREATE TABLE t (id INT)")
        copy.catch_up()
        # A table that only looks like a sequence, and is in the catalog, gets its rows.
        like = ", ".join(f"{name} BIGINT NOT NULL" for name in "abcdef")
        run(mariadb_source, f"CREATE TABLE l ({like}, g TINYINT NOT NULL, h BIGINT NOT NULL)")
        run(mariadb_source, "INSERT INTO l VALUES (1, 2, 3, 4, 5, 6, 7, 8)")
        copy.catch_up()
        assert copy.differences("shop") == []
    finally:
        execute(mariadb_source, "SET GLOBAL binlog_row_metadata = FULL")
        copy.close()


def test_a_stale_stored_column_of_mariadb_gets_the_value_in_the_log(mariadb_source: MariaDb) -> None:
    # MariaDB adds and drops columns instantly, without rewriting the rows: the stored `g` was computed from the former
    # `b`. To REPLACE, `g` has the same value before and after, so it is not stored again, and the log shows a value
    # that the table does not have.
    mariadb_source.wipe()
    execute(mariadb_source, "CREATE DATABASE shop")
    copy = LoggedCopy(mariadb_source)
    try:
        copy.adopt()
        run(
            mariadb_source,
            "CREATE TABLE t (id INT PRIMARY KEY, b INT, a INT, g TINYINT AS (b IS NULL) STORED)",
            "INSERT INTO t (id, b, a) VALUES (1, 1, 7), (2, 2, 7)",
            "ALTER TABLE t DROP b, ADD b DATE",
        )
        copy.catch_up()
        assert copy.differences("shop") == []
        run(mariadb_source, "REPLACE INTO t (id) VALUES (1)")
        [replaced] = transactions_until_now(mariadb_source, copy.at)
        [change] = replaced.changes
        assert change.rows == b"\xf8\x01\0\0\0\x07\0\0\0\x01\xfa\x01\0\0\0\x01"
        copy.catch_up()
        assert copy.contents("copy_shop")["t"] == ["('1', None, '1', None)", "('2', '7', '0', None)"]
    finally:
        copy.close()


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        (["CREATE TABLE Foo (id INT)", "CREATE TABLE foo (id INT)"], "shop.Foo, shop.foo"),
        (["CREATE TABLE Foo (id INT)", "CREATE TABLE IF NOT EXISTS fOO (id INT)"], "shop.Foo, shop.fOO"),
        (["CREATE TABLE Foo (id INT)", "CREATE TABLE f (id INT)", "RENAME TABLE f TO foo"], "shop.Foo, shop.foo"),
        (["CREATE DATABASE IF NOT EXISTS Shop"], "shop, Shop"),
    ],
)
def test_two_names_that_differ_only_in_case_are_refused(
    mariadb_source: MariaDb, statements: Sequence[str], names: str
) -> None:
    mariadb_source.wipe()
    execute(mariadb_source, "CREATE DATABASE shop")
    copy = LoggedCopy(mariadb_source)
    try:
        copy.adopt()
        run(mariadb_source, *statements)
        with pytest.raises(SchemaError, match="only in letter case") as refused:
            copy.catch_up()
        assert refused.value.where["names"] == names
        with pytest.raises(SchemaError, match="only in letter case"):
            LoggedCopy(mariadb_source, "another").adopt()
    finally:
        copy.close()


def test_a_rename_that_changes_only_the_case_keeps_the_table(copy: LoggedCopy) -> None:
    run(copy.server, "CREATE TABLE foo (id INT PRIMARY KEY, v VARCHAR(9), u INT)", "RENAME TABLE foo TO Foo")
    run(copy.server, ROWS.format("Foo"), "CREATE TABLE IF NOT EXISTS Foo (id INT)")
    copy.catch_up()
    assert copy.differences("shop") == []


def test_a_server_that_stores_names_in_lower_case_is_followed() -> None:
    with mariadb_in_memory((*MariaDb.list_source_options(), "--lower-case-table-names=1")) as server:
        execute(server, "CREATE DATABASE shop")
        copy = LoggedCopy(server)
        try:
            copy.adopt()
            run(server, "CREATE DATABASE Other", "CREATE TABLE Other.Foo (Id INT PRIMARY KEY)")
            run(server, "INSERT INTO other.foo VALUES (1)")
            run(server, "CREATE DATABASE IF NOT EXISTS OTHER", "CREATE TABLE IF NOT EXISTS OTHER.FOO (x INT)")
            run(server, "ALTER TABLE OTHER.FOO ADD c INT", "RENAME TABLE Other.Foo TO Other.Bar")
            run(server, "INSERT INTO Other.bar VALUES (2, 2)")
            copy.catch_up()
            assert copy.differences("other") == []
            assert list(copy.contents("other")) == ["bar"]
            run(server, "ALTER DATABASE Other COLLATE latin1_bin", "DROP DATABASE OTHER")
            copy.catch_up()
            assert copy.contents("copy_other") == {}
        finally:
            copy.close()


PARTITIONED = (
    "CREATE TABLE p (id INT PRIMARY KEY, c VARCHAR(9)) PARTITION BY RANGE (id)"
    " (PARTITION p0 VALUES LESS THAN (10), PARTITION `P 1` VALUES LESS THAN (20))"
)


@pytest.mark.parametrize("family", ["mariadb_source", "mysql"])
def test_rows_of_exchanged_partitions_are_followed(request: pytest.FixtureRequest, family: str) -> None:
    server: MariaDb = request.getfixturevalue(family)
    execute(server, "DROP DATABASE IF EXISTS copy_shop", "DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    copy = LoggedCopy(server)
    try:
        copy.adopt()
        run(server, PARTITIONED, "CREATE TABLE d (id INT PRIMARY KEY, c VARCHAR(9))")
        run(server, "INSERT INTO p VALUES (1, 'p'), (11, 'p'), (12, 'p')", "INSERT INTO d VALUES (13, 'd'), (14, 'd')")
        # Twice, so that each id means a table, a partition and the table again.
        for number in range(2):
            # MariaDB 10 has no VALIDATION and finds a partition only as it is spelled.
            one = "`P 1` WITH TABLE shop.d" if server.name == "mariadb" else "`p 1` WITH TABLE d WITH VALIDATION"
            run(server, f"ALTER TABLE p EXCHANGE PARTITION {one}")
            run(server, f"INSERT INTO p VALUES (1{5 + number}, 'p')", f"INSERT INTO d VALUES (1{7 + number}, 'd')")
            run(server, f"UPDATE d SET c = 'x{number}' WHERE id = 1{1 + number * 2}")
            copy.catch_up()
            assert copy.differences("shop") == []
        run(server, "ALTER TABLE p TRUNCATE PARTITION `P 1`", "DROP TABLE d", "INSERT INTO p VALUES (19, 'p')")
        copy.catch_up()
        assert copy.differences("shop") == []
        assert copy.contents("shop")["p"] == ["('1', 'p')", "('19', 'p')"]
    finally:
        copy.close()
        execute(server, "DROP DATABASE shop")


def test_partitions_become_tables_and_tables_partitions(mariadb_source: MariaDb) -> None:
    mariadb_source.wipe()
    execute(mariadb_source, "CREATE DATABASE shop")
    copy = LoggedCopy(mariadb_source)
    try:
        copy.adopt()
        run(mariadb_source, PARTITIONED, "CREATE TABLE d (id INT PRIMARY KEY, c VARCHAR(9))")
        run(mariadb_source, "INSERT INTO p VALUES (1, 'p'), (11, 'p')", "INSERT INTO d VALUES (25, 'd')")
        for statement in (
            "ALTER TABLE p CONVERT PARTITION `P 1` TO TABLE shop.c",
            "INSERT INTO c VALUES (99, 'c')",
            "ALTER TABLE p CONVERT TABLE d TO PARTITION p2 VALUES LESS THAN (30)",
            "INSERT INTO p VALUES (26, 'p')",
            "ALTER TABLE p CONVERT PARTITION p2 TO TABLE d",
            "DELETE FROM d WHERE id = 25",
        ):
            run(mariadb_source, statement)
            copy.catch_up()
            assert copy.differences("shop") == []
        assert {name: len(found) for name, found in copy.contents("shop").items()} == {"p": 1, "c": 2, "d": 1}
    finally:
        copy.close()


def test_exchange_with_a_table_that_is_left_out_is_refused(mariadb_source: MariaDb) -> None:
    mariadb_source.wipe()
    execute(mariadb_source, "CREATE DATABASE shop")
    copy = LoggedCopy(mariadb_source)
    try:
        copy.adopt()
        run(mariadb_source, PARTITIONED)
        copy.catch_up()
        execute(
            mariadb_source,
            "SET sql_log_bin = 0", "CREATE TABLE shop.late (id INT PRIMARY KEY, c VARCHAR(9))", "SET sql_log_bin = 1",
            "ALTER TABLE shop.p EXCHANGE PARTITION p0 WITH TABLE shop.late",
        )  # fmt: skip
        with pytest.raises(SchemaError, match=r"table shop\.late, which the feeder does not have.*ignore-tables"):
            copy.catch_up()
    finally:
        copy.close()


KINDS = ("INT", "BIGINT", "VARCHAR(20)", "VARCHAR(9) CHARACTER SET latin1", "DECIMAL(9,2)", "TEXT", "DOUBLE", "BLOB")
SETTINGS = (
    "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", "SET time_zone = '-07:30'", "SET sql_mode = ''",
    "SET collation_connection = 'utf8mb4_general_ci'", "SET timestamp = 1600000000.5",
    "SET sql_mode = DEFAULT, time_zone = DEFAULT, timestamp = DEFAULT",
)  # fmt: skip


class RandomLog:
    """Statements on a few tables `t0`.. with id and columns c0..; some of them fail and are then in no log."""

    def __init__(self, seed: int, family: str) -> None:
        self.draw = random.Random(seed)
        self.family = family

    def statements(self) -> list[str]:
        """Draw the statements of the next step."""
        draw = self.draw
        steps = [self._change] * 5 + [self._alter] * 3 + [
            self._create, self._create, self._move, self._transaction, self._xa, self._temporary, self._setting,
        ]  # fmt: skip
        return draw.choice(steps)()

    def _table(self) -> str:
        return f"t{self.draw.randrange(3)}"

    def _column(self) -> str:
        return f"c{self.draw.randrange(4)}"

    def _value(self) -> str:
        return self.draw.choice(["NULL", "0", "7", "'12'", "'3'", "1"])

    def _change(self) -> list[str]:
        table, column, key = self._table(), self._column(), self.draw.randrange(12)
        return [
            self.draw.choice([
                f"INSERT INTO {table} (id, {column}) VALUES ({key}, {self._value()}), ({key + 1}, {self._value()})",
                f"REPLACE INTO {table} (id, {column}) VALUES ({key}, {self._value()})",
                f"UPDATE {table} SET {column} = {self._value()} WHERE id < {key}",
                f"UPDATE {table} SET id = id + 20 WHERE id = {key}",
                f"DELETE FROM {table} WHERE id = {key}",
            ])
        ]  # fmt: skip

    def _alter(self) -> list[str]:
        table, kind, default = self._table(), self.draw.choice(KINDS), self.draw.choice(["", " NOT NULL"])
        clause = self.draw.choice([
            f"ADD {self._column()} {kind}{default}", f"ADD {self._column()} {kind} FIRST",
            f"DROP COLUMN {self._column()}", f"MODIFY {self._column()} {kind}",
            f"CHANGE {self._column()} {self._column()} {kind} AFTER id", "ADD x INT DEFAULT 5",
            f"ADD {self._column()} DATETIME(2) DEFAULT CURRENT_TIMESTAMP(2)",
            f"RENAME COLUMN {self._column()} TO {self._column()}, DROP x", f"ADD KEY ({self._column()})",
            f"ADD {self._column()} TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'", "DROP PRIMARY KEY",
            "ADD PRIMARY KEY (id)", f"RENAME TO {self._table()}, ADD y{self.draw.randrange(9)} INT", "ENGINE = InnoDB",
            f"CONVERT TO CHARACTER SET {self.draw.choice(['latin1', 'utf8mb4'])}",
        ])  # fmt: skip
        head = self.draw.choice(
            ["ALTER TABLE ", "ALTER TABLE shop.", "/*!50100 ALTER */ TABLE ", "alter /* x */ table "]
        )
        is_set = self.family == "mariadb" and self.draw.random() < 0.2
        before = "SET STATEMENT lock_wait_timeout = 9 FOR " if is_set else ""
        return [f"{before}{head}{table} {clause}"]

    def _create(self) -> list[str]:
        table, other = self._table(), self._table()
        columns = ", ".join(f"c{n} {self.draw.choice(KINDS)}" for n in range(self.draw.randrange(1, 4)))
        forms = [
            f"CREATE TABLE {table} (id INT PRIMARY KEY, {columns})",
            f"CREATE TABLE IF NOT EXISTS {table} (id INT NOT NULL, {columns}) COMMENT = 'it''s'",
            f"CREATE TABLE {table} LIKE {other}", f"CREATE TABLE {table} AS SELECT * FROM {other}",
            f"CREATE TABLE {table} (PRIMARY KEY (id)) SELECT id, c0 FROM {other}",
        ]  # fmt: skip
        if self.family == "mariadb":
            forms.append(f"CREATE OR REPLACE TABLE {table} (id INT PRIMARY KEY, {columns})")
        return [self.draw.choice(forms)]

    def _move(self) -> list[str]:
        first, other = self._table(), self._table()
        return [
            self.draw.choice([
                f"DROP TABLE IF EXISTS {first}, none_such", f"TRUNCATE {first}", f"RENAME TABLE {first} TO {other}",
                f"RENAME TABLE {first} TO between_them, {other} TO {first}, between_them TO {other}",
            ])
        ]  # fmt: skip

    def _transaction(self) -> list[str]:
        changes = [text for _ in range(3) for text in self._change()]
        return ["BEGIN", changes[0], "SAVEPOINT `a b`", changes[1], "ROLLBACK TO `a b`", changes[2],
                self.draw.choice(["COMMIT", "ROLLBACK", "CREATE TEMPORARY TABLE x (i INT)"]), "COMMIT"]  # fmt: skip

    def _xa(self) -> list[str]:
        ends = self.draw.choice([["XA PREPARE 'x'", "XA COMMIT 'x'"], ["XA PREPARE 'x'", "XA ROLLBACK 'x'"],
                                 ["XA COMMIT 'x' ONE PHASE"]])  # fmt: skip
        return ["XA START 'x'", *self._change(), *self._change(), "XA END 'x'", *ends]

    def _temporary(self) -> list[str]:
        table = self._table()
        begin = f"CREATE TEMPORARY TABLE {table} (id INT PRIMARY KEY, c0 INT)"
        end = (f"TRUNCATE TABLE {table}", f"ALTER TABLE {table} ADD c1 INT", f"DROP TEMPORARY TABLE {table}")
        return [begin, *self._change(), *end]

    def _setting(self) -> list[str]:
        return [self.draw.choice(SETTINGS)]


def check_random_log(copy: LoggedCopy, seed: int, steps: int) -> None:
    log, ran = RandomLog(seed, copy.server.name), list[str]()
    with copy.server.connect() as link, link.cursor() as cursor:
        link.select_db("shop")
        for _ in range(steps):
            for text in log.statements():
                try:
                    cursor.execute(text)
                    ran.append(text)
                except pymysql.err.Error:
                    pass  # no such table or column: nothing is logged
    try:
        copy.catch_up()
        assert copy.differences("shop") == []
    except BaseException:
        print(f"seed {seed}:", *ran, sep="\n")
        raise


@pytest.mark.parametrize("seed", range(2))
def test_random_statements(copy: LoggedCopy, seed: int) -> None:
    check_random_log(copy, seed, 60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_random_statements(copy: LoggedCopy, seed: int) -> None:
    check_random_log(copy, seed, 150)
