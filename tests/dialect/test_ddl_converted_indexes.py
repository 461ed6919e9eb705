"""Indexes on a column whose values an expression converts, and which the same ALTER renames, drops or creates again."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from support.mariadb import MariaDb, rows
from support.tabledefs import col, key, primary, table
from support.windows import target_of

from binlake.dialect import DdlText, map_ddl
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb


def sides(before: dict[str, str], after: dict[str, str]) -> tuple[TableDef, TableDef]:
    """`v` changes from VARCHAR to INT, next to `w`; the indexes (name and column) before and after."""
    made = []
    for kind, keys in (({"tp": t.VARCHAR, "flen": 9}, before), ({"tp": t.LONG}, after)):
        own: list[Any] = [key(name, column, unique=name.startswith("u")) for name, column in keys.items()]
        made.append(table("t", col("id", not_null=True), col("v", **kind), col("w"), keys=(primary("id"), *own)))
    return made[0], made[1]


@pytest.mark.parametrize(
    ("clauses", "before", "after"),
    [
        ("RENAME INDEX `k` TO `k2`", {"k": "v"}, {"k2": "v"}),
        ("RENAME KEY K TO K2", {"k": "v"}, {"K2": "v"}),
        ("RENAME INDEX `u` TO `u2`, RENAME INDEX `l` TO `l2`", {"u": "v", "l": "w"}, {"u2": "v", "l2": "w"}),
        ("RENAME INDEX `k` TO `k2`, ADD INDEX `k` (`v`)", {"k": "v"}, {"k2": "v", "k": "v"}),
        ("RENAME INDEX `k` TO `l`, RENAME INDEX `l` TO `k`", {"k": "v", "l": "w"}, {"l": "v", "k": "w"}),
        ("ADD INDEX `k` (`v`)", {}, {"k": "v"}),
        ("ADD UNIQUE `u` (`v`)", {"k": "v"}, {"k": "v", "u": "v"}),
        ("DROP INDEX `k`", {"k": "v"}, {}),
        ("DROP INDEX `k`, ADD INDEX `k` (`w`)", {"k": "v"}, {"k": "w"}),
        ("DROP INDEX `k`, ADD INDEX `k` (`v`)", {"k": "w"}, {"k": "v"}),
        ("DROP INDEX `k`, ADD INDEX `k` (`v`)", {"k": "v"}, {"k": "v"}),
        ("ADD COLUMN `x` INT", {"k": "v", "u": "v"}, {"k": "v", "u": "v"}),
    ],
)
def test_index_changes_on_a_converted_column(
    server: MariaDb, clauses: str, before: dict[str, str], after: dict[str, str]
) -> None:
    server.wipe()
    former, now = sides(before, after)
    keys = "".join(f", {'UNIQUE ' if k.startswith('u') else ''}KEY `{k}` (`{v}`)" for k, v in before.items())
    query = f"ALTER TABLE `t` MODIFY `v` INT, {clauses}"
    said = map_ddl(DdlText(7, "d", "t", query, DdlSide((), (former,)), DdlSide((), (now,))), server.name).sql
    assert any("_binlake_cast_" in sql for sql in said)
    with closing(TargetSession(target_of(server))) as session:
        session.execute("CREATE DATABASE d")
        session.execute(f"CREATE TABLE d.t (id INT PRIMARY KEY, v VARCHAR(9), w INT{keys})")
        session.execute("INSERT INTO d.t VALUES (1, '12.6', 5)")
        for sql in said:
            session.execute(sql)
    shown = rows(server, "SELECT index_name, column_name, non_unique FROM information_schema.statistics"
                          " WHERE table_schema = 'd' AND index_name <> 'PRIMARY'")  # fmt: skip
    assert set(shown) == {(name, column, int(not name.startswith("u"))) for name, column in after.items()}
    assert rows(server, "SELECT id, v, w FROM d.t") == [(1, 13, 5)]
