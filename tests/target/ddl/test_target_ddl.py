"""A DDL runs once: a run that finds an intent checks the target to learn whether the DDL was executed (R-04)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Window, apply, apply_in_child, at, signal_me

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, Permanent, TargetRefused
from binlake.target import ExpectedState, TargetSession
from binlake.target.commands.checkpoint import _close_window
from binlake.target.definitions.definitions import read_definitions

pytestmark = pytest.mark.mariadb

TOUCHED = {
    "create": ("CREATE TABLE n (id INT PRIMARY KEY)", [("app", "n")]),
    "drop": ("DROP TABLE log", [("app", "log")]),
    "add column": ("ALTER TABLE t ADD COLUMN w INT NOT NULL DEFAULT 7", [("app", "t")]),
    "drop column": ("ALTER TABLE t DROP COLUMN extra", [("app", "t")]),
    "modify column": ("ALTER TABLE t MODIFY COLUMN v VARCHAR(200)", [("app", "t")]),
    "add index": ("CREATE INDEX by_v ON t (v)", [("app", "t")]),
    "add unique": ("ALTER TABLE t ADD UNIQUE KEY only_v (v)", [("app", "t")]),
    "truncate": ("TRUNCATE TABLE t", [("app", "t")]),
    "rename": ("RENAME TABLE log TO diary", [("app", "log"), ("app", "diary")]),
    "swap": ("RENAME TABLE a TO x, b TO a, x TO b", [("app", "a"), ("app", "b")]),
    "create database": ("CREATE DATABASE app2", [("app2", "")]),
    "drop database": ("DROP DATABASE app3", [("app3", "")]),
    "comment": ("ALTER TABLE t COMMENT = 'only a word'", [("app", "t")]),
}
KILLS = ["intent", "ddl_executed", "ddl_done"]
AGAIN = {"truncate"}
"""DDL whose execution leaves no evidence; running it twice gives the same result as once."""


def prepare(server: MariaDb) -> None:
    """Reset the databases to the state before these tests' windows, with nothing applied."""
    own = rows(server, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'tidb_binlog'")
    execute(
        server,
        *(f"DELETE FROM tidb_binlog.{name}" for (name,) in own),
        *(f"DROP DATABASE IF EXISTS {name}" for name in ("app", "app2")),
        "CREATE DATABASE IF NOT EXISTS app3",
        "CREATE DATABASE app CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20), extra INT)",
        "CREATE TABLE app.log (line VARCHAR(40))",
        "CREATE TABLE app.a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE app.b LIKE app.a",
        "INSERT INTO app.a VALUES (1, 1)",
        "INSERT INTO app.b VALUES (2, 2)",
    )


@pytest.fixture(autouse=True)
def no_other_databases(server: MariaDb) -> Iterator[None]:
    """Drops every database that `target` does not create."""
    yield
    execute(server, "DROP DATABASE IF EXISTS app2", "DROP DATABASE IF EXISTS app3")


def window(kind: str, after: ExpectedState | None) -> Window:
    sql, touched = TOUCHED[kind]
    found = Window(100, 300).statement("REPLACE INTO app.t (id, v) VALUES (1, 'old')")
    db = touched[0][0]
    found.ddl(200, sql, touched, after, repeatable=kind != "swap", db=db)
    return found.statement("REPLACE INTO app.t (id, v) VALUES (2, 'new')")


def describe_databases(server: MariaDb) -> list[object]:
    """All definitions and rows of app, and the names of the databases."""
    shown: list[object] = rows(server, "SHOW DATABASES LIKE 'app%%'")
    for (name,) in rows(server, "SHOW TABLES IN app"):
        shown += rows(server, f"SHOW CREATE TABLE app.{name}")
        shown += rows(server, f"SELECT * FROM app.{name} ORDER BY 1")
    return shown


def run_undisturbed(server: MariaDb, target: TargetSection, kind: str) -> tuple[ExpectedState, list[object]]:
    """The definitions and the description after an undisturbed run."""
    prepare(server)
    apply(target, window(kind, None))
    session = TargetSession(target)
    actual = read_definitions(session, TOUCHED[kind][1], target.db_type)
    session.close()
    return ExpectedState(actual.databases, actual.tables), describe_databases(server)


@pytest.mark.parametrize("kind", TOUCHED)
def test_kill_at_any_ddl_step_is_resumed(server: MariaDb, target: TargetSection, kind: str) -> None:
    # kill between steps 2, 3 and 4; rows before the DDL are not written again, rows after it are stored once
    after, done = run_undisturbed(server, target, kind)
    for step in KILLS:
        prepare(server)
        pid = apply_in_child(target, window(kind, after), at(step, 1, signal_me(signal.SIGKILL)))
        assert wait_for_exit(pid) == -signal.SIGKILL
        assert apply(target, window(kind, after)).ddls == (step == "intent" or (kind in AGAIN and step != "ddl_done"))
        assert describe_databases(server) == done, step


@pytest.mark.parametrize("ahead", [False, True])
def test_checkpoint_is_at_the_ddl_before_rows_that_follow_it(
    server: MariaDb, target: TargetSection, ahead: bool
) -> None:
    # R-04 steps 1 and 4; where rows ran ahead of the DDL, the checkpoint stays before them (DESIGN 3.8)
    seen: list[tuple[str, str]] = []

    def look(step: str) -> None:
        text = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
        seen.append((step, text.split('"commitTS":')[1].split(",")[0]))

    prepare(server)
    found, before = window("add column", None), 149 if ahead else 199
    found.plans = [replace(found.plans[0], end_ts=before), replace(found.plans[1], rows_ahead=ahead)]
    apply(target, found, lambda step: look(step) if step.startswith(("intent", "ddl")) else None)
    assert seen == [("intent", str(before)), ("ddl_executed", str(before)), ("ddl_done", "149" if ahead else "200")]
    look("end")
    assert seen[-1] == ("end", "300")


def test_kill_after_a_ddl_with_rows_ahead_loses_no_row(server: MariaDb, target: TargetSection) -> None:
    # R-04, DESIGN 3.8
    after, done = run_undisturbed(server, target, "add column")
    prepare(server)
    found = window("add column", after)
    found.plans = [replace(found.plans[0], end_ts=149), replace(found.plans[1], rows_ahead=True)]
    pid = apply_in_child(target, found, at("ddl_done", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    session = TargetSession(target)
    with pytest.raises(CheckpointConflict, match="earlier rows of shop are not applied yet"):
        _close_window(session, target.checkpoint_schema, CLUSTER, NAME, close=True)
    session.close()
    assert apply(target, found).ddls == 0
    assert describe_databases(server) == done


def test_target_that_matches_neither_side_stops_for_an_operator(server: MariaDb, target: TargetSection) -> None:
    prepare(server)
    sql, touched = TOUCHED["add column"]
    other = ExpectedState({}, {("app", "t"): None})
    found = Window(100, 300).ddl(200, sql, touched, other)
    pid = apply_in_child(target, found, at("intent", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    execute(server, "ALTER TABLE app.t ADD COLUMN by_hand INT")
    with pytest.raises(Permanent, match="neither the definitions before it nor those after it") as stopped:
        apply(target, found)
    assert "app.t" in str(stopped.value)
    assert "binlake_progress" in stopped.value.hint
    # The hint's command works.
    execute(server, "UPDATE tidb_binlog.binlake_progress SET ddl_state = 'done'")
    assert apply(target, found).ddls == 0


def test_ddl_refused_by_the_target_can_be_run_again(server: MariaDb, target: TargetSection) -> None:
    execute(server, "INSERT INTO app.t VALUES (1, 'same'), (2, 'same')")
    found = Window(100, 300).ddl(200, "ALTER TABLE t ADD UNIQUE KEY (v)", [("app", "t")])
    for _ in range(2):
        with pytest.raises(TargetRefused, match="Duplicate entry"):
            apply(target, found)
    execute(server, "DELETE FROM app.t WHERE id = 2")
    assert apply(target, found).ddls == 1


def test_segment_before_the_intent_is_not_executed_again(server: MariaDb, target: TargetSection) -> None:
    # writes to a dropped column would fail forever
    prepare(server)
    found = Window(100, 300).statement("REPLACE INTO app.t (id, extra) VALUES (1, 1)").log("once")
    found.ddl(200, "ALTER TABLE t DROP COLUMN extra", [("app", "t")]).put((2, "b"))
    pid = apply_in_child(target, found, at("batch", 3, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert apply(target, found).batches == 1
    assert rows(server, "SELECT * FROM app.log") == [("once",)]
