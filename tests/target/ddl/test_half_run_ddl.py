"""A DDL that takes several statements is continued where the process died, at the first that is missing (R-04)."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from typing import Any

import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, key, primary, table
from support.windows import Window, apply, apply_in_child, at, signal_me, wait_until

from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.dialect import DdlText, map_ddl
from binlake.errors import Permanent
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.target import TargetSession
from binlake.target.ddl.execution import execute_step
from binlake.target.definitions.definitions import expect_after_ddl

pytestmark = pytest.mark.mariadb

ID, V, W = col("id", not_null=True), col("v", t.VARCHAR, flen=20), col("w", t.LONG)
G = col("g", t.VARCHAR, flen=40, generated_expr_string="hex(`v`)", generated_stored=True)
MADE = "CREATE TABLE app.q (id INT PRIMARY KEY, v VARCHAR(20), w INT, CONSTRAINT few CHECK (w < 99), CHECK (w > 0))"
PREPARED = {
    "anew": ("ADD COLUMN g VARCHAR(40)",),
    "converted": ("ADD COLUMN g VARCHAR(40)",),
    "in steps": ("CHANGE v f FLOAT",),
}
"""The specs that make the table of a case from `MADE`."""
CASES: dict[str, tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...], str, tuple[Any, ...]]] = {
    # The second ALTER makes a column plain, whose values the first one computed.
    "added": ((), (ID, V, W, G), "ADD COLUMN `g` VARCHAR(40) GENERATED ALWAYS AS (hex(`v`)) STORED", ()),
    "with a key": (
        (),
        (ID, V, W, G),
        "ADD COLUMN `g` VARCHAR(40) GENERATED ALWAYS AS (hex(`v`)) STORED FIRST, ADD KEY `by_w` (`w`)",
        (key("by_w", "w", unique=False),),
    ),
    "anew": (
        (ID, V, W, col("g", t.VARCHAR, flen=40)),
        (ID, V, W, G),
        "MODIFY COLUMN `g` VARCHAR(40) GENERATED ALWAYS AS (hex(`v`)) STORED, ADD KEY `by_w` (`w`)",
        (key("by_w", "w", unique=False),),
    ),
    # A conversion in steps is before it.
    "converted": (
        (ID, V, W, {**G, "generated_expr_string": "hex(`w`)"}),
        (ID, V, col("w", t.VARCHAR, flen=30), {**G, "generated_expr_string": "hex(`w`)"}),
        "MODIFY COLUMN `w` VARCHAR(30)",
        (),
    ),
    # The default of the first ALTER fills the old rows, the second has the source's.
    "filled": (
        (),
        (ID, V, W, col("j", t.JSON, not_null=True), col("k", t.JSON, not_null=True)),
        "ADD COLUMN `j` JSON NOT NULL, ADD COLUMN `k` JSON NOT NULL",
        (),
    ),
    # Values are converted in a column beside the old one, which then takes its place; a default follows.
    "in steps": (
        (ID, col("f", t.FLOAT), W),
        (ID, col("f", t.VARCHAR, flen=60), W, col("j", t.JSON, not_null=True)),
        "MODIFY COLUMN `f` VARCHAR(60), ADD COLUMN `j` JSON NOT NULL",
        (),
    ),
}
QUICK = ("added", "filled", "in steps")
OF_TIDB = ("filled", "in steps")


def map_case(name: str, dialect: Dialect) -> tuple[TableDef, TableDef, tuple[str, ...]]:
    """(the table before, after, the statements at a target of `dialect`)."""
    former, now, specs, keys = CASES[name]
    before = table("q", *(former or (ID, V, W)), keys=(primary("id"),), db="app")
    after = table("q", *now, keys=(primary("id"), *keys), db="app")
    session = SourceSession(family="" if name in OF_TIDB else dialect, sql_mode=0)
    sides = DdlSide((), (before,)), DdlSide((), (after,), session)
    return before, after, map_ddl(DdlText(7, "app", "q", f"ALTER TABLE `q` {specs}", *sides), dialect).sql


def prepare(server: MariaDb, name: str) -> None:
    own = rows(server, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'tidb_binlog'")
    execute(
        server,
        *(f"DELETE FROM tidb_binlog.{one}" for (one,) in own),
        "DROP TABLE IF EXISTS app.q",
        MADE,
        "INSERT INTO app.q VALUES (1, '1.5', 1), (2, NULL, 2), (7, '1e15', 3)",
    )
    execute(server, *(f"ALTER TABLE app.q {specs}" for specs in PREPARED.get(name, ())))


def build_window(name: str, dialect: Dialect) -> tuple[Window, tuple[str, ...]]:
    before, after, sql = map_case(name, dialect)
    expected = expect_after_ddl(DdlSide((), (before,)), DdlSide((), (after,)), dialect)
    return Window(100, 300).ddl(200, sql, [("app", "q")], expected), sql


def describe(server: MariaDb) -> list[Any]:
    return [*rows(server, "SHOW CREATE TABLE app.q"), *rows(server, "SELECT * FROM app.q ORDER BY id")]


def kill_after_intent(target: TargetSection, window: Window) -> None:
    pid = apply_in_child(target, window, at("intent", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.soak) for name in CASES]
)
def test_ddl_of_several_statements_is_continued_after_a_kill_between_any_two(
    server: MariaDb, target: TargetSection, name: str
) -> None:
    # R-04 R-34
    window, sql = build_window(name, target.db_type)
    assert sum("ALTER TABLE" in statement for statement in sql) > 1, sql
    prepare(server, name)
    apply(target, window)
    done = describe(server)
    for count in (0, *(n for n, statement in enumerate(sql, 1) if not statement.startswith(("SET ", "USE ")))):
        prepare(server, name)
        kill_after_intent(target, window)
        with closing(TargetSession(target)) as session:
            for statement in sql[:count]:
                execute_step(session, statement)
        apply(target, window)
        assert describe(server) == done, sql[:count]
        assert rows(server, "SHOW TABLES IN tidb_binlog LIKE '%%_was_%%'") == []


def test_kill_between_the_two_alters_of_a_column_computed_once(server: MariaDb, target: TargetSection) -> None:
    """R-04 R-34: in a process of its own, while the server makes the second ALTER wait."""
    window, _ = build_window("added", target.db_type)
    prepare(server, "added")
    apply(target, window)
    done = describe(server)
    prepare(server, "added")
    waiting = "SELECT id, info FROM information_schema.processlist WHERE state LIKE '%%metadata lock%%'"
    with server.connect() as first, server.connect() as second, first.cursor() as reads, second.cursor() as writes:
        reads.execute("BEGIN")
        reads.execute("SELECT * FROM app.q")
        pid = apply_in_child(target, window)
        wait_until(lambda: any("ALTER" in (info or "") for _, info in rows(server, waiting)))
        writes.execute("BEGIN")
        # It waits for the first ALTER, and then the second one for it.
        writer = threading.Thread(target=writes.execute, args=("UPDATE app.q SET w = w + 0",))
        writer.start()
        wait_until(lambda: any("UPDATE" in (info or "") for _, info in rows(server, waiting)))
        reads.execute("COMMIT")
        writer.join(30)
        wait_until(lambda: any("MODIFY" in (info or "") for _, info in rows(server, waiting)))
        os.kill(pid, signal.SIGKILL)
        assert wait_for_exit(pid) == -signal.SIGKILL
        for number, info in rows(server, waiting):
            assert "ALTER" in info
            execute(server, f"KILL {number}")
        wait_until(lambda: not rows(server, waiting))
        writes.execute("ROLLBACK")
    assert "GENERATED" in str(rows(server, "SHOW CREATE TABLE app.q"))
    apply(target, window)
    assert describe(server) == done
    assert "GENERATED" not in str(done)


def test_table_that_was_changed_meanwhile_stops_for_an_operator(server: MariaDb, target: TargetSection) -> None:
    #
    window, sql = build_window("added", target.db_type)
    prepare(server, "added")
    kill_after_intent(target, window)
    execute(server, "USE app", sql[3], "ALTER TABLE app.q ADD COLUMN by_hand INT")
    with pytest.raises(Permanent, match=r"neither the definitions before it nor those after it.*column g is"):
        apply(target, window)
