"""Errors of DDL: which are ignored because the target already has the result, which never are, and the messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.mariadb import MariaDb, execute, rows
from support.windows import Window, apply

from binlake.config.servers import TargetSection
from binlake.errors import TargetRefused
from binlake.target import ExpectedState, TargetSession
from binlake.target.ddl.execution import IGNORABLE
from binlake.target.definitions.definitions import find_remaining_rows, read_definitions

pytestmark = pytest.mark.mariadb

T, LOG = ("app", "t"), ("app", "log")
# number: (statement run beforehand, the DDL, the names whose definitions it changes)
HAD_IT: dict[int, tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]] = {
    1007: ("CREATE DATABASE app2", ("CREATE DATABASE app2",), (("app2", ""),)),
    1008: ("DROP DATABASE IF EXISTS app2", ("DROP DATABASE app2",), (("app2", ""),)),
    1049: ("DROP DATABASE IF EXISTS app2", ("USE app2", "DROP TABLE t"), (("app2", "t"),)),
    1050: ("CREATE TABLE app.n (id INT PRIMARY KEY)", ("CREATE TABLE n (id INT PRIMARY KEY)",), (("app", "n"),)),
    1051: ("DROP TABLE app.log", ("DROP TABLE log",), (LOG,)),
    1054: ("ALTER TABLE app.t CHANGE v w VARCHAR(20)", ("ALTER TABLE t CHANGE v w VARCHAR(20)",), (T,)),
    1060: ("ALTER TABLE app.t ADD COLUMN w INT", ("ALTER TABLE t ADD COLUMN w INT",), (T,)),
    1061: ("ALTER TABLE app.t ADD INDEX by_v (v)", ("ALTER TABLE t ADD INDEX by_v (v)",), (T,)),
    1091: ("ALTER TABLE app.t DROP COLUMN v", ("ALTER TABLE t DROP COLUMN v",), (T,)),
    1146: ("RENAME TABLE app.log TO app.diary", ("RENAME TABLE log TO diary",), (LOG, ("app", "diary"))),
    1176: ("ALTER TABLE app.t ADD INDEX b (v)", ("ALTER TABLE t RENAME INDEX a TO b",), (T,)),
    # Current servers only report a note.
    1831: ("CREATE PROCEDURE app.noted() SIGNAL SQLSTATE '42000' SET MYSQL_ERRNO = 1831", ("CALL noted()",), (T,)),
}


def expected_code(target: TargetSection, code: int) -> int:
    """The target's error number: for a RENAME, MySQL first checks whether the new name exists."""
    return 1050 if (target.db_type, code) == ("mysql", 1146) else code


def read_expected(target: TargetSection, names: tuple[tuple[str, str], ...]) -> ExpectedState:
    session = TargetSession(target)
    try:
        found = read_definitions(session, names, target.db_type)
    finally:
        session.close()
    return ExpectedState(found.databases, found.tables)


def expect_empty(target: TargetSection, name: tuple[str, str]) -> ExpectedState:
    """What CREATE TABLE and TRUNCATE leave: the table's current form without rows."""
    return replace(read_expected(target, (name,)), empty={name: ()})


def window(sql: tuple[str, ...], names: tuple[tuple[str, str], ...], after: ExpectedState | None) -> Window:
    found = Window(100, 300).ddl(200, sql[-1], names, after)
    ddl = found.plans[1].ddl
    assert ddl is not None
    text: Any = (*(("USE app",) if len(sql) == 1 and names[0][1] else ()), *sql)
    object.__setattr__(ddl, "sql", text)
    return found


@pytest.fixture(autouse=True)
def no_other_database(server: MariaDb) -> Iterator[None]:
    """Drops every database that `target` does not create."""
    yield
    execute(server, "DROP DATABASE IF EXISTS app2")


def test_ignored_errors_are_the_drainers_list() -> None:  # tidb-binlog 5.10
    assert set(IGNORABLE) == set(HAD_IT)


@pytest.mark.parametrize("code", HAD_IT)
def test_ddl_already_present_on_the_target_is_ignored_and_reported(
    server: MariaDb, target: TargetSection, code: int
) -> None:
    # tidb-binlog 5.10; DESIGN 3.11: logged, counted
    before, sql, names = HAD_IT[code]
    execute(server, before)
    result = apply(target, window(sql, names, read_expected(target, names)))
    assert [text.split(":")[0] for text in result.ignored] == [str(expected_code(target, code))]
    assert rows(server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint") == [(1,)]


@pytest.mark.parametrize("code", [1050, 1060, 1146])
def test_such_an_error_is_not_ignored_if_the_target_differs(server: MariaDb, target: TargetSection, code: int) -> None:
    # the drainer would continue, and later rows would be lost or refused
    before, sql, names = HAD_IT[code]
    execute(server, before)
    after = read_expected(target, names)
    execute(server, f"ALTER TABLE {'.'.join(names[-1])} ADD COLUMN other INT")
    with pytest.raises(
        TargetRefused, match=rf"a DDL failed: .* does not match its result: .*other.*code={expected_code(target, code)}"
    ) as stop:
        apply(target, window(sql, names, after))
    assert "ddl-replacement" in stop.value.hint
    execute(server, f"ALTER TABLE {'.'.join(names[-1])} DROP COLUMN other")
    assert apply(target, window(sql, names, after)).state == "applied"


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE log (line VARCHAR(40))", "CREATE TABLE IF NOT EXISTS log (line VARCHAR(40))"]
)
def test_create_that_finds_a_table_with_rows_is_refused_until_it_is_gone(
    server: MariaDb, target: TargetSection, sql: str
) -> None:  # rows of the old table would mix with those of the new one
    after = expect_empty(target, LOG)
    execute(server, "INSERT INTO app.log VALUES ('old')")
    created = window((sql,), (LOG,), after).log("new")
    with pytest.raises(
        TargetRefused, match=r"does not match its result: app.log has rows, but should have none"
    ) as stop:
        apply(target, created)
    assert "finalize again" in stop.value.hint
    with pytest.raises(TargetRefused, match="has rows"):
        apply(target, created)
    execute(server, "RENAME TABLE app.log TO app.log_old")
    assert apply(target, created).state == "applied"
    assert rows(server, "SELECT line FROM app.log") == [("new",)]


def test_old_table_that_was_emptied_counts_as_the_new_one(server: MariaDb, target: TargetSection) -> None:
    after = expect_empty(target, LOG)
    execute(server, "INSERT INTO app.log VALUES ('old')")
    created = window(("CREATE TABLE log (line VARCHAR(40))",), (LOG,), after)
    with pytest.raises(TargetRefused, match="has rows"):
        apply(target, created)
    execute(server, "DELETE FROM app.log")
    assert [text.split(":")[0] for text in apply(target, created).ignored] == ["1050"]


def test_drop_that_leaves_the_table_is_refused(target: TargetSection) -> None:
    # Issue 13.1: DROP TABLE IF EXISTS in another letter case raises no error and drops nothing
    sql = "DROP TABLE IF EXISTS LOG"
    with pytest.raises(
        TargetRefused, match=r"it ran and the target does not match its result: app.log: the table is still there"
    ):
        apply(target, window((sql,), (LOG,), ExpectedState({}, {LOG: None})))


@pytest.mark.parametrize(
    "sql", ["TRUNCATE TABLE T", "ALTER TABLE T TRUNCATE PARTITION p", "ALTER TABLE T DROP PARTITION p"]
)
def test_error_of_a_statement_that_removes_rows_is_never_ignored(
    server: MariaDb, target: TargetSection, sql: str
) -> None:  # issue 13.1: error 1146 was ignored, and all rows stayed
    execute(server, "INSERT INTO app.t VALUES (1, 'stays')")
    after = replace(read_expected(target, (T,)), empty={T: ()} if sql.startswith("TRUNCATE") else {}, moves_rows=True)
    with pytest.raises(TargetRefused, match=r"does not match its result: .*rows.*code=1146"):
        apply(target, window((sql,), (T,), after))


def test_rows_of_a_truncated_partition_are_checked(server: MariaDb, target: TargetSection) -> None:
    execute(
        server,
        "CREATE TABLE app.p (d INT) PARTITION BY RANGE (d) (PARTITION a VALUES LESS THAN (10),"
        " PARTITION b VALUES LESS THAN (20))",
        "INSERT INTO app.p VALUES (1), (11)",
    )
    session = TargetSession(target)
    try:
        assert find_remaining_rows(session, {("app", "p"): ("a",)}) == [
            "app.p has rows in the partitions a, but should have none"
        ]
        session.execute("ALTER TABLE app.p TRUNCATE PARTITION a")
        assert find_remaining_rows(session, {("app", "p"): ("a",), ("app", "q"): ()}) == []
        assert find_remaining_rows(session, {("app", "p"): ("c",)}) == ["app.p: no such partition in the partitions c"]
    finally:
        session.close()


@pytest.mark.parametrize(
    ("code", "sql"),
    [
        (1062, "ALTER TABLE t ADD UNIQUE KEY (v)"),
        (1064, "ALTER TABEL t ADD COLUMN w INT"),
        (1068, "ALTER TABLE t ADD PRIMARY KEY (v)"),
        (1072, "ALTER TABLE t ADD INDEX (nowhere)"),
        (1265, "ALTER TABLE t MODIFY v ENUM('z')"),
    ],
)
def test_other_errors_stop_with_their_position_and_remedies(
    server: MariaDb, target: TargetSection, code: int, sql: str
) -> None:  # S4-46
    execute(server, "INSERT INTO app.t VALUES (1, 'same'), (2, 'same')")
    with pytest.raises(TargetRefused, match=rf"a DDL failed.*ddl_commit_ts=200.*code={code}") as stop:
        apply(target, window((sql,), (T,), read_expected(target, (T,))))
    assert all(way in stop.value.hint for way in ("ddl-replacement", "ignore-txn-commit-ts", "binlake ddl release"))
    assert rows(server, "SELECT checkPoint LIKE '%%\"commitTS\":199%%' FROM tidb_binlog.checkpoint") == [(1,)]


def test_nothing_runs_in_another_database_after_a_failed_use(server: MariaDb, target: TargetSection) -> None:
    names = (("app2", "t"),)
    sql = ("USE app2", "DROP TABLE t")
    assert apply(target, window(sql, names, ExpectedState({}, {names[0]: None}))).ignored
    assert rows(server, "SHOW TABLES IN app LIKE 't'") == [("t",)]
