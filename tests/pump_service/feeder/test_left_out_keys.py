"""What is kept of the foreign keys of tables that are left out, statement by statement (R-11).

test_cascade_chains.py has the same on servers, which also show what the keys do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from binlake.mysqlbinlog.cascades import Cascade
from binlake.mysqlbinlog.definitions.descriptions import TableDescription
from binlake.mysqlbinlog.definitions.statements import split_ddl
from binlake.mysqlbinlog.definitions.writer import JobWriter, SourceNames
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.foreignkeys import LEFT_OUT_KEYS, ForeignKeys

NAMES = SourceNames("s1", Flavor.MARIADB, ignores=lambda db, table: db != "d" or table.startswith("out"))
TO_A = "FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE"
OUT = f"CREATE TABLE out1 (id INT PRIMARY KEY, a INT, b INT, {TO_A})"
NAMED = f"CREATE TABLE out1 (id INT PRIMARY KEY, a INT, b INT, CONSTRAINT one {TO_A})"
ADD_A = "ALTER TABLE out1 ADD COLUMN a INT REFERENCES a (id) ON DELETE CASCADE"
END = "CREATE TABLE e (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES out1 (id) ON DELETE CASCADE)"


def describe(db: str, name: str, create: str) -> TableDescription:
    return TableDescription.of_text(Flavor.MARIADB, db, name, create)


class Keys:
    """Those of a source, followed by one object and made again from its jobs after each statement."""

    def __init__(self, *followed: tuple[str, str, str]) -> None:
        self.writer = JobWriter([])
        self.followed = [describe(*one) for one in followed]
        self.keys = ForeignKeys(NAMES, [])
        self.jobs: list[dict[str, Any]] = []

    def run(self, *texts: str) -> list[str]:
        """Follow statements; returns those that changed the keys."""
        told = []
        for text in texts:
            singles = split_ddl(LoggedStatement("d", text, LoggedSession(sql_mode=0)), Flavor.MARIADB)
            changes = self.keys.follow(self.writer, singles, lambda: self.followed)
            self.jobs += [change.build_job(1, 1) for change in changes]
            told += [text for _ in changes]
            again = ForeignKeys(NAMES, self.jobs)
            assert list(map(show, again.trace(self.followed))) == self.trace()
        return told

    def trace(self) -> list[str]:
        return list(map(show, self.keys.trace(self.followed)))


def show(key: Cascade) -> str:
    events = " ".join(["delete"] * key.on_delete + ["update"] * key.on_update)
    through = "".join(f" through {'.'.join(name)}" for name in key.through)
    return f"{'.'.join(key.parent)} -> {'.'.join(key.child)} on {events}{through}"


CHAIN = "d.a -> d.e on delete through d.out1"
OWN = "d.out1 -> d.e on delete"


def test_first_definitions_are_adopted_without_what_is_followed_or_refers_to_nothing() -> None:
    keys = Keys(("d", "e", END))
    tables = [
        describe("d", "out1", OUT), *keys.followed, describe("d", "out2", "CREATE TABLE out2 (id INT PRIMARY KEY)"),
        describe("d", "out3", "CREATE TABLE out3 (id INT COMMENT 'REFERENCES')"),
    ]  # fmt: skip
    (change,) = keys.keys.adopt(keys.writer, tables)
    assert len(change.build_job(1, 1)["feeder"][LEFT_OUT_KEYS]["keys"]) == 1
    assert keys.trace() == [CHAIN, OWN]
    assert keys.keys.adopt(keys.writer, tables) == []
    assert len(keys.keys.adopt(keys.writer, [])) == 1
    assert keys.trace() == [OWN]
    assert ForeignKeys(SourceNames("other", Flavor.MARIADB), [change.build_job(1, 1)]).trace([]) == []


def test_state_is_restored_after_a_statement_that_failed() -> None:
    keys = Keys(("d", "e", END))
    keys.run(OUT)
    restore = keys.keys.save_state()
    keys.run("ALTER TABLE out1 CHANGE a c INT", "RENAME TABLE a TO a2", "DROP TABLE out1")
    assert keys.trace() == [OWN]
    restore()
    assert keys.trace() == [CHAIN, OWN]
    assert keys.run("DROP TABLE out1") != []


FIRST: tuple[tuple[Sequence[str], list[str], list[str]], ...] = (
    # (statements, those of them that change the keys, the cascades at the end)
    ([OUT], [OUT], [CHAIN, OWN]),
    ([OUT, "DROP TABLE out1"], [OUT, "DROP TABLE out1"], [OWN]),
    ([OUT, "DROP TABLE out2", "DROP TABLE e", "TRUNCATE TABLE out1"], [OUT], [CHAIN, OWN]),
    ([OUT, "DROP DATABASE d"], [OUT, "DROP DATABASE d"], [OWN]),
    ([OUT, "DROP DATABASE far"], [OUT], [CHAIN, OWN]),
    ([OUT, "CREATE TABLE out1 (id INT)"], [OUT, "CREATE TABLE out1 (id INT)"], [OWN]),
    # It may have existed, and then it has its keys.
    ([OUT, "CREATE TABLE IF NOT EXISTS out1 (id INT)"], [OUT], [CHAIN, OWN]),
    ([OUT, "CREATE TABLE out1 LIKE x"], [OUT, "CREATE TABLE out1 LIKE x"], [OWN]),
    ([OUT, "CREATE TABLE IF NOT EXISTS out1 LIKE x"], [OUT], [CHAIN, OWN]),
    (["CREATE TABLE a (id INT)"], [], [OWN]),
    # ADD
    (["CREATE TABLE out1 (id INT)", f"ALTER TABLE out1 ADD {TO_A}"], [f"ALTER TABLE out1 ADD {TO_A}"], [CHAIN, OWN]),
    ([f"ALTER TABLE out1 ADD x INT, ADD CONSTRAINT k {TO_A}"], [f"ALTER TABLE out1 ADD x INT, ADD CONSTRAINT k {TO_A}"],
     [CHAIN, OWN]),
    (["ALTER TABLE out1 ADD COLUMN IF NOT EXISTS a INT REFERENCES a (id) ON DELETE CASCADE"],
     ["ALTER TABLE out1 ADD COLUMN IF NOT EXISTS a INT REFERENCES a (id) ON DELETE CASCADE"], [CHAIN, OWN]),
    ([f"ALTER TABLE out1 ADD (x INT, {TO_A})"], [f"ALTER TABLE out1 ADD (x INT, {TO_A})"], [CHAIN, OWN]),
    (["ALTER TABLE e ADD x INT", "ALTER TABLE out1 ADD x INT", "ALTER TABLE out1 COMMENT 'x'"], [], [OWN]),
    # DROP by name
    ([NAMED, "ALTER TABLE out1 DROP FOREIGN KEY ONE"], [NAMED, "ALTER TABLE out1 DROP FOREIGN KEY ONE"], [OWN]),
    ([NAMED, "ALTER TABLE out1 DROP CONSTRAINT one"], [NAMED, "ALTER TABLE out1 DROP CONSTRAINT one"], [OWN]),
    ([NAMED, "ALTER TABLE out1 DROP FOREIGN KEY other"], [NAMED], [CHAIN, OWN]),
    ([NAMED, "ALTER TABLE out1 DROP FOREIGN KEY IF EXISTS other"], [NAMED], [CHAIN, OWN]),
    ([OUT, "ALTER TABLE out1 DROP FOREIGN KEY chosen"], [OUT, "ALTER TABLE out1 DROP FOREIGN KEY chosen"], [OWN]),
    # It may be another constraint, which has no effect here.
    ([OUT, "ALTER TABLE out1 DROP CONSTRAINT IF EXISTS chosen"], [OUT], [CHAIN, OWN]),
    ([OUT, "ALTER TABLE out1 DROP PRIMARY KEY", "ALTER TABLE out1 DROP INDEX x"], [OUT], [CHAIN, OWN]),
    # DROP of a column takes its keys with it, unless it may have another name now.
    ([OUT, "ALTER TABLE out1 DROP b"], [OUT], [CHAIN, OWN]),
    ([OUT, "ALTER TABLE out1 DROP a"], [OUT, "ALTER TABLE out1 DROP a"], [OWN]),
    ([OUT, "ALTER TABLE out1 DROP COLUMN A"], [OUT, "ALTER TABLE out1 DROP COLUMN A"], [OWN]),
    ([OUT, "ALTER TABLE out1 DROP IF EXISTS a"], [OUT, "ALTER TABLE out1 DROP IF EXISTS a"], [OWN]),
    ([OUT, "ALTER TABLE out1 CHANGE a c INT", "ALTER TABLE out1 DROP a"], [OUT, "ALTER TABLE out1 CHANGE a c INT"],
     [CHAIN, OWN]),
    ([OUT, "ALTER TABLE out1 RENAME COLUMN a TO c", "ALTER TABLE out1 DROP a"],
     [OUT, "ALTER TABLE out1 RENAME COLUMN a TO c"], [CHAIN, OWN]),
    ([OUT, "ALTER TABLE out1 RENAME KEY x TO y", "ALTER TABLE out1 DROP a"], [OUT, "ALTER TABLE out1 DROP a"], [OWN]),
    (["CREATE TABLE out1 (id INT)", f"ALTER TABLE out1 ADD {TO_A}", "ALTER TABLE out1 DROP a"],
     [f"ALTER TABLE out1 ADD {TO_A}", "ALTER TABLE out1 DROP a"], [OWN]),
    ([ADD_A, "ALTER TABLE out1 DROP a"], [ADD_A, "ALTER TABLE out1 DROP a"], [OWN]),
    ([OUT, "ALTER TABLE out1 CHANGE a c INT", "RENAME TABLE out1 TO out2", "ALTER TABLE out2 DROP a"],
     [OUT, "ALTER TABLE out1 CHANGE a c INT", "RENAME TABLE out1 TO out2"],
     ["d.a -> d.e on delete through d.out2", OWN, "d.out2 -> d.e on delete"]),
    # Names
    ([OUT, "RENAME TABLE out1 TO out2"], [OUT, "RENAME TABLE out1 TO out2"],
     ["d.a -> d.e on delete through d.out2", OWN, "d.out2 -> d.e on delete"]),
    ([OUT, "RENAME TABLE a TO a2"], [OUT, "RENAME TABLE a TO a2"],
     [CHAIN, OWN, "d.a2 -> d.e on delete through d.out1"]),
    ([OUT, "RENAME TABLE a TO a2, a2 TO a3"], [OUT, *["RENAME TABLE a TO a2, a2 TO a3"] * 2],
     [CHAIN, OWN, *(f"d.{name} -> d.e on delete through d.out1" for name in ("a2", "a3"))]),
    ([OUT, "RENAME TABLE a TO a2", "RENAME TABLE a2 TO a", "RENAME TABLE a TO a2"],
     [OUT, "RENAME TABLE a TO a2", "RENAME TABLE a2 TO a"], [CHAIN, OWN, "d.a2 -> d.e on delete through d.out1"]),
    ([OUT, "RENAME TABLE other TO other2"], [OUT], [CHAIN, OWN]),
)  # fmt: skip


@pytest.mark.parametrize(("texts", "told", "traced"), FIRST)
def test_keys_follow_the_statements_of_the_log(texts: Sequence[str], told: list[str], traced: list[str]) -> None:
    keys = Keys(("d", "e", END))
    assert keys.run(*texts) == told
    assert keys.trace() == traced
