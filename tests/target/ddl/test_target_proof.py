"""A started DDL counts as done only by proof: other table numbers or another server prove nothing (R-04)."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from support.children import wait_for_exit
from support.failover import drop_copies, fail_over, take_copy
from support.mariadb import MariaDb, execute, rows
from support.windows import NAME, Window, apply, apply_in_child, at, signal_me

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, Permanent, TargetRefused
from binlake.target import ExpectedState, TargetSession
from binlake.target.commands.ddl import release_ddl
from binlake.target.definitions.definitions import read_definitions

pytestmark = pytest.mark.mariadb

A, B, P = ("app", "a"), ("app", "b"), ("app", "p")
TRUNCATE = ("TRUNCATE TABLE a", [A])
SWAP = ("RENAME TABLE a TO x, b TO a, x TO b -- crosswise", [A, B])
EXCHANGE = ("ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE b", [P, B])
DROP_PARTITION = ("ALTER TABLE p DROP PARTITION p0", [P])
MEANWHILE = ["nothing", "optimize", "restored"]
EVERY = ("app", "tidb_binlog")


@pytest.fixture(autouse=True)
def tables(request: pytest.FixtureRequest, server: MariaDb) -> Iterator[None]:
    request.getfixturevalue("target")
    execute(
        server,
        "CREATE TABLE app.a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE app.b LIKE app.a",
        "CREATE TABLE app.p (id INT PRIMARY KEY, v INT) PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "INSERT INTO app.a VALUES (1, 1)",
        "INSERT INTO app.b VALUES (2, 2)",
        "INSERT INTO app.p VALUES (3, 3), (13, 13)",
    )
    yield
    drop_copies(server)


def read_expected(target: TargetSection, names: list[tuple[str, str]]) -> ExpectedState:
    """The current forms of `names`, which a DDL that changes no definition leaves unchanged."""
    with closing(TargetSession(target)) as session:
        found = read_definitions(session, names, target.db_type)
    return ExpectedState(found.databases, found.tables)


def window(target: TargetSection, ddl: tuple[str, list[tuple[str, str]]], *, repeatable: bool) -> Window:
    sql, names = ddl
    return Window(100, 300).ddl(200, sql, names, read_expected(target, names), repeatable=repeatable)


def kill_apply(target: TargetSection, found: Window, step: str) -> None:
    pid = apply_in_child(target, found, at(step, 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL


def renumber_tables(server: MariaDb, what: str) -> None:
    """Change the tables' numbers without changing their rows."""
    if what == "optimize":
        for name in ("app.a", "app.b", "app.p"):
            rows(server, f"OPTIMIZE TABLE {name}")
    if what == "restored":
        fail_over(server, take_copy(server, *EVERY), *EVERY)


def ids(server: MariaDb, *names: str) -> list[list[int]]:
    return [[found for (found,) in rows(server, f"SELECT id FROM app.{name} ORDER BY 1")] for name in names]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("step", ["intent", "ddl_executed"])
def test_interrupted_truncate_leaves_no_row(server: MariaDb, target: TargetSection, step: str, meanwhile: str) -> None:
    found = window(target, TRUNCATE, repeatable=True)
    kill_apply(target, found, step)
    renumber_tables(server, meanwhile)
    apply(target, found)
    assert ids(server, "a") == [[]]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("step", ["intent", "ddl_executed", "ddl_done"])
def test_swap_of_equal_tables_runs_once(server: MariaDb, target: TargetSection, step: str, meanwhile: str) -> None:
    # The same statement moves the marker; so no privilege to read the engine's numbers is needed.
    execute(
        server,
        "DROP USER IF EXISTS 'narrow'@'%'",
        "CREATE USER 'narrow'@'%' IDENTIFIED BY 'secret'",
        "GRANT ALL ON app.* TO 'narrow'@'%'",
        "GRANT ALL ON tidb_binlog.* TO 'narrow'@'%'",
    )
    narrow = target.model_copy(update={"user": "narrow", "password": "secret"})
    found = window(target, SWAP, repeatable=False)
    kill_apply(narrow, found, step)
    renumber_tables(server, meanwhile)
    assert apply(narrow, found).ddls == (step == "intent")
    assert ids(server, "a", "b") == [[2], [1]]
    apply(narrow, Window(300, 400))
    assert rows(server, "SHOW TABLES IN tidb_binlog LIKE 'binlake\\_kept%'") == []


@pytest.mark.parametrize("step", ["intent", "ddl_executed"])
def test_swap_without_its_marker_stops_for_an_operator(server: MariaDb, target: TargetSection, step: str) -> None:
    found = window(target, SWAP, repeatable=False)
    kill_apply(target, found, step)
    for (name,) in rows(server, "SHOW TABLES IN tidb_binlog LIKE 'binlake\\_kept%'"):
        execute(server, f"DROP TABLE tidb_binlog.{name}")
    with pytest.raises(Permanent, match="does not show whether it ran") as stopped:
        apply(target, found)
    # The hint's command works.
    assert "set ddl_state in tidb_binlog.binlake_progress to 'done'" in stopped.value.hint
    state = "done" if step == "ddl_executed" else ""
    execute(server, f"UPDATE tidb_binlog.binlake_progress SET ddl_state = '{state}'")
    apply(target, found)
    assert ids(server, "a", "b") == [[2], [1]]


def test_refused_rename_list_moves_nothing(server: MariaDb, target: TargetSection) -> None:
    found = window(target, ("RENAME TABLE a TO x, b TO a, x TO b, gone TO y", [A, B]), repeatable=False)
    with pytest.raises(TargetRefused):
        apply(target, found)
    assert ids(server, "a", "b") == [[1], [2]]
    assert release_ddl(target, 0, NAME, 200)[1] == 199


@pytest.mark.parametrize("step", ["intent", "ddl_executed"])
def test_exchange_is_proven_by_swapped_numbers(server: MariaDb, target: TargetSection, step: str) -> None:
    found = window(target, EXCHANGE, repeatable=False)
    kill_apply(target, found, step)
    assert apply(target, found).ddls == (step == "intent")
    assert ids(server, "p", "b") == [[2, 13], [3]]


@pytest.mark.parametrize("meanwhile", ["optimize", "restored"])
@pytest.mark.parametrize("step", ["intent", "ddl_executed"])
def test_exchange_without_proof_is_not_guessed(
    server: MariaDb, target: TargetSection, step: str, meanwhile: str
) -> None:
    found = window(target, EXCHANGE, repeatable=False)
    kill_apply(target, found, step)
    before = ids(server, "p", "b")
    renumber_tables(server, meanwhile)
    with pytest.raises(Permanent, match="does not show whether it ran"):
        apply(target, found)
    with pytest.raises(CheckpointConflict, match="cannot prove it"):
        release_ddl(target, 0, NAME, 200)
    assert ids(server, "p", "b") == before


@pytest.mark.parametrize("meanwhile", MEANWHILE)
def test_interrupted_drop_of_a_partition_is_completed(server: MariaDb, target: TargetSection, meanwhile: str) -> None:
    found = window(target, DROP_PARTITION, repeatable=True)
    kill_apply(target, found, "intent")
    renumber_tables(server, meanwhile)
    assert apply(target, found).ddls == 1
    assert ids(server, "p") == [[13]]


@pytest.mark.servers("mariadb")  # MySQL has no partitions in MyISAM
def test_repair_of_the_table_is_not_taken_for_a_dropped_partition(server: MariaDb, target: TargetSection) -> None:
    # The table was MyISAM when the DDL started; that difference is repaired now, but the partition still exists.
    sql, names = DROP_PARTITION
    left = replace(read_expected(target, names), moves_rows=True)
    found = Window(100, 300).ddl(200, sql, names, left, repeatable=True)
    execute(server, "ALTER TABLE app.p ENGINE = MyISAM")
    kill_apply(target, found, "intent")
    execute(server, "ALTER TABLE app.p ENGINE = InnoDB")
    with pytest.raises(Permanent) as stopped:
        apply(target, found)
    assert "set ddl_state" in str(stopped.value.hint)
    execute(server, "UPDATE tidb_binlog.binlake_progress SET ddl_state = ''")
    assert apply(target, found).ddls == 1
    assert ids(server, "p") == [[13]]


@pytest.mark.parametrize(("amiss", "step"), [("index", "ddl_executed"), ("comment", "intent")])
@pytest.mark.parametrize("ddl", [EXCHANGE, DROP_PARTITION], ids=["exchange", "drop"])
def test_definitions_prove_nothing_for_a_ddl_that_moves_rows(
    server: MariaDb, target: TargetSection, amiss: str, step: str, ddl: tuple[str, list[tuple[str, str]]]
) -> None:
    # neither an index that the target always lacked nor a comment that someone adds meanwhile is proof
    sql, names = ddl
    execute(server, "ALTER TABLE app.p ADD INDEX by_v (v)", "ALTER TABLE app.b ADD INDEX by_v (v)")
    left = replace(read_expected(target, names), moves_rows=True)
    if amiss == "index":
        execute(server, "ALTER TABLE app.p DROP INDEX by_v", "ALTER TABLE app.b DROP INDEX by_v")
    found = Window(100, 300).ddl(200, sql, names, left, repeatable=ddl is DROP_PARTITION)
    kill_apply(target, found, step)
    if amiss == "comment":
        execute(server, "ALTER TABLE app.p COMMENT = 'theirs'")
    assert apply(target, found).ddls == (step == "intent")
    assert ids(server, "p", "b") == ([[2, 13], [3]] if ddl is EXCHANGE else [[13], [2]])


@pytest.mark.parametrize("by_hand", [False, True])
def test_refused_exchange_that_was_done_by_hand_is_not_reversed(
    server: MariaDb, target: TargetSection, by_hand: bool
) -> None:
    #
    sql, names = EXCHANGE
    execute(server, "INSERT INTO app.b VALUES (15, 15)")
    left = replace(read_expected(target, names), moves_rows=True)
    found = Window(100, 300).ddl(200, sql, names, left, repeatable=False)
    with pytest.raises(TargetRefused, match="does not match the partition"):
        apply(target, found)
    execute(server, "DELETE FROM app.b WHERE id = 15", *[sql.replace("TABLE ", "TABLE app.")] * by_hand)
    assert apply(target, found).ddls == (not by_hand)
    assert ids(server, "p", "b") == [[2, 13], [3]]


def test_dropped_partition_is_proven_on_the_same_server_and_unknown_on_another(
    server: MariaDb, target: TargetSection
) -> None:
    found = window(target, DROP_PARTITION, repeatable=True)
    kill_apply(target, found, "ddl_executed")
    copy = take_copy(server, *EVERY)
    assert apply(target, found).ddls == 0
    fail_over(server, copy, *EVERY)
    with pytest.raises(TargetRefused) as stopped:
        apply(target, found)
    assert stopped.value.hint.startswith("if it ran before, set ddl_state in tidb_binlog.binlake_progress to 'done'")
    execute(server, "UPDATE tidb_binlog.binlake_progress SET ddl_state = 'done'")
    assert apply(target, found).ddls == 0
    assert ids(server, "p") == [[13]]


def test_intent_of_an_older_version_without_proof_is_not_guessed(server: MariaDb, target: TargetSection) -> None:
    found = window(target, TRUNCATE, repeatable=True)
    kill_apply(target, found, "intent")
    [(text,)] = rows(server, "SELECT ddl_expected FROM tidb_binlog.binlake_progress")
    old = json.dumps({key: value for key, value in json.loads(text).items() if key != "before"})
    with closing(TargetSession(target)) as session:
        session.write("UPDATE tidb_binlog.binlake_progress SET ddl_expected = %s", (old,))
    with pytest.raises(Permanent, match="the version of Binlake that began it recorded no evidence"):
        apply(target, found)
    execute(server, "UPDATE tidb_binlog.binlake_progress SET ddl_state = ''")
    assert apply(target, found).ddls == 1
