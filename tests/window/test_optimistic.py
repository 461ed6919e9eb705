"""`shard-mode = "optimistic"`: the target has what holds the rows of all its tables, which none of them need have."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.workload import Workload, integer, text
from test_judging import SHARDS, logged, plan, rules, two_shards

from binlake.config import Replication
from binlake.errors import SchemaError
from binlake.rows.schema import Action, SchemaState
from binlake.rows.schema import mysqltypes as t
from binlake.window.ddls import window_schemas
from binlake.window.definitions import LandedDdl
from binlake.window.extras import extras_of_window
from binlake.window.targets import Naming, TargetTables
from pump_service.workload.definitions import Col, column_json

OPTIMISTIC = {"routes": [SHARDS], "shard_mode": "optimistic"}


def alter(w: Workload, db: str, table: str, query: str, *columns: Col) -> int:
    """An ALTER of one shard that leaves exactly `columns`: those of a name that it has keep their number."""
    info = json.loads(json.dumps(w.table(db, table).raw))
    known = {column["name"]["O"]: column for column in info["cols"]}
    top = max(column["id"] for column in info["cols"])
    info["cols"] = []
    for offset, column in enumerate(columns):
        former = known.get(column.name)
        top += former is None
        made = column_json(column, former["id"] if former else top, offset, primary=column.name == "id")
        info["cols"].append({**made, "origin_default": former["origin_default"] if former else column.default})
    w._put(db, info)
    return w._ddl(Action.MULTI_SCHEMA_CHANGE, db, table, query, info)


def made(w: Workload) -> list[LandedDdl]:
    """The DDL behind the shards' four first ones."""
    return plan(w, **OPTIMISTIC)[4:]


def said(w: Workload) -> list[str]:
    return [ddl.sql if ddl.decision == "apply" else f"- {ddl.reason}" for ddl in made(w)]


SAME = "- shared table: the target has the shape that all its tables need"


def test_shards_that_each_add_another_column_are_one_table() -> None:  # R-15 S4-03
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    w.add_column("s2", "t_2", integer("b", default="2"))
    assert said(w) == ["ALTER TABLE `all`.`t` ADD COLUMN `a` INT(11) DEFAULT '1'",
                       "ALTER TABLE `all`.`t` ADD COLUMN `b` INT(11) DEFAULT '2'"]  # fmt: skip
    names = [[column.name for column in ddl.after.tables[0].columns] for ddl in made(w)]
    assert names == [["id", "name", "a"], ["id", "name", "a", "b"]]
    binlogs, jobs = logged(w)
    found = extras_of_window(window_schemas(SchemaState(), binlogs, jobs), Naming(rules(**OPTIMISTIC)))
    assert {(extra.db, *extra.values.items()) for extra in found} == {
        ("s2", ("a", "1")), ("s1", ("b", "2"))
    }  # fmt: skip
    w.add_column("s1", "t_1", integer("b", default="2"))
    w.add_column("s2", "t_2", integer("a", default="1"))
    assert said(w)[2:] == [SAME, SAME]


def test_a_column_goes_when_no_shard_has_it() -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, integer("a"))
        w.add_column(db, table, integer("b"))
    w.drop_column("s1", "t_1", "a")
    w.drop_column("s2", "t_2", "b")
    w.drop_column("s1", "t_1", "b")
    w.drop_column("s2", "t_2", "a")
    assert said(w)[4:] == [SAME, SAME, "ALTER TABLE `all`.`t` DROP COLUMN `b`", "ALTER TABLE `all`.`t` DROP COLUMN `a`"]


def test_what_the_target_has_already_is_left_out_of_a_statement() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    columns = [integer("id"), text("name"), integer("a", default="1"), text("c", 9, not_null=True, default="x")]
    alter(w, "s2", "t_2", "ALTER TABLE t_2 ADD COLUMN a INT DEFAULT 1, ADD COLUMN c VARCHAR(9) NOT NULL DEFAULT 'x'",
          *columns)  # fmt: skip
    assert said(w)[1] == ("ALTER TABLE `all`.`t` ADD COLUMN `c` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
                          " NOT NULL DEFAULT 'x'")  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (text("name", 100), text("name", 80), "varchar(100)"),
        (text("name", 100, not_null=True), text("name", 80), "varchar(100)"),
        (replace(text("name"), tp=t.VARCHAR, flen=10), text("name", 64), "varchar(64)"),
    ],
)
def test_a_type_is_the_one_that_holds_all_values(first: Col, second: Col, joined: str) -> None:
    w = two_shards()
    alter(w, "s1", "t_1", "ALTER TABLE t_1 MODIFY COLUMN name x", integer("id"), first)
    alter(w, "s2", "t_2", "ALTER TABLE t_2 MODIFY COLUMN name x", integer("id"), second)
    naming = Naming(rules(**OPTIMISTIC))
    found = TargetTables(SchemaState().fold(logged(w)[1]), naming).find("all", "t")
    assert found is not None
    column = found.column("name")
    assert column is not None
    assert (column.type_text, column.not_null) == (joined, False)


NUMBERS = [("tinyint", t.TINY), ("smallint", t.SHORT), ("int", t.LONG), ("bigint", t.LONGLONG)]


@pytest.mark.parametrize(("name", "tp"), NUMBERS)
def test_numbers_widen_and_narrow_with_the_last(name: str, tp: int) -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, Col("n", t.LONG, 11))
    changed = [integer("id"), text("name"), Col("n", tp, 11)]
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        alter(w, db, table, f"ALTER TABLE {table} MODIFY COLUMN n {name}", *changed)
    own = f"ALTER TABLE `all`.`t` MODIFY COLUMN n {name}"
    assert said(w)[2:] == {"int": [SAME, SAME], "bigint": [own, SAME]}.get(name, [SAME, own])


CONFLICTS = [
    (Col("n", t.LONG, 11), Col("n", t.LONG, 11, unsigned=True), "s1.t_1 has int, s2.t_2 has int unsigned"),
    (text("n"), integer("n"), r"varchar\(64\) utf8mb4_bin, s2.t_2 has int"),
    (Col("n", t.NEWDECIMAL, 10, 2), Col("n", t.NEWDECIMAL, 12, 4), r"decimal\(10,2\).*decimal\(12,4\)"),
    (Col("n", t.ENUM, -1, -1, elems=("a", "b")), Col("n", t.ENUM, -1, -1, elems=("b", "a")), r"enum\('a','b'\)"),
    (integer("n", default="1"), integer("n", default="2"), "have '1' at the target, but the DDL gives them '2'"),
]


@pytest.mark.parametrize(("first", "second", "why"), CONFLICTS)
def test_a_conflict_is_named_with_both_tables_and_the_ways_on(first: Col, second: Col, why: str) -> None:
    w = two_shards()
    w.add_column("s1", "t_1", first)
    at = w.add_column("s2", "t_2", second)
    with pytest.raises(SchemaError, match=why) as error:
        made(w)
    assert error.value.where["commit_ts"] == str(at)
    assert "ignore-txn-commit-ts" in error.value.hint
    assert plan(w, at, **OPTIMISTIC)[-1].reason == "ignore-txn-commit-ts"


@pytest.mark.parametrize("same_number", [True, False])
def test_a_renamed_column_is_a_conflict(same_number: bool) -> None:
    # Rows of the shard would keep their values under the old name, which the other shard still has.
    w = two_shards()
    info: dict[str, Any] = json.loads(json.dumps(w.table("s1", "t_1").raw))
    info["cols"][1]["name"] = {"O": "title", "L": "title"}
    info["cols"][1]["id"] += 0 if same_number else 7
    w._put("s1", info)
    what = "RENAME COLUMN name TO" if same_number else "CHANGE COLUMN name"
    w._ddl(Action.MODIFY_COLUMN, "s1", "t_1", f"ALTER TABLE t_1 {what} title VARCHAR(64)", info)
    with pytest.raises(SchemaError, match="a column is renamed"):
        made(w)


@pytest.mark.parametrize(
    "query",
    [
        "CHANGE {} {} VARCHAR(90)", "CHANGE COLUMN {} {} VARCHAR(90)", "CHANGE {} {} TEXT",
        "CHANGE COLUMN IF EXISTS {} {} TEXT",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("old", "new"), [("name", "title"), ("NAME", "name")])
def test_change_is_a_rename_where_its_two_names_differ(query: str, old: str, new: str) -> None:
    """With another type the column has another number, so that the text alone tells."""
    w = two_shards()
    info: dict[str, Any] = json.loads(json.dumps(w.table("s1", "t_1").raw))
    info["cols"][1] |= {"name": {"O": new, "L": new}, "id": 9}
    info["cols"][1]["type"]["Flen"] = 90
    w._put("s1", info)
    w._ddl(Action.MODIFY_COLUMN, "s1", "t_1", f"ALTER TABLE t_1 {query.format(old, new)}", info)
    if new != "name":
        with pytest.raises(SchemaError, match="a column is renamed"):
            made(w)
        return
    [found] = made(w)
    assert (found.decision, found.sql) == ("apply", f"ALTER TABLE `all`.`t` {query.format(old, new)}")


def test_a_table_that_joins_widens_and_one_that_leaves_narrows() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name", 90), integer("x")], ["id"])
    w.drop_table("s2", "t_3")
    joins, leaves = made(w)
    assert joins.sql == ("ALTER TABLE `all`.`t` MODIFY COLUMN `name` varchar(90) CHARACTER SET utf8mb4 COLLATE"
                         " utf8mb4_bin NULL, ADD COLUMN `x` int NULL")  # fmt: skip
    assert leaves.sql.startswith("ALTER TABLE `all`.`t` DROP COLUMN `x`, MODIFY COLUMN `name` varchar(64)")
    assert "its rows stay there" in leaves.alert
    assert joins.action == leaves.action == Action.MULTI_SCHEMA_CHANGE


def test_a_mode_that_is_not_set_changes_no_lake() -> None:
    # The hash of a lake of before must be what it was.
    made = [Replication.model_validate({"name": "demo", "lake": {"path": "x"}, **more}).data_hash()
            for more in ({}, {"shard-mode": ""}, {"shard-mode": "optimistic"})]  # fmt: skip
    assert made[0] == made[1] != made[2]


def test_a_database_that_goes_narrows_what_its_tables_alone_had() -> None:
    # Else a column that comes again is there already, with the values of then.
    w = two_shards()
    w.add_column("s2", "t_2", integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name", 90)], ["id"])
    for place in [place for place in w._tables if place[0] == "s2"]:
        del w._tables[place]
    w._ddl(Action.DROP_SCHEMA, "s2", "", "DROP DATABASE `s2`")
    w.add_column("s1", "t_1", integer("n", default="9"))
    dropped, narrowed, again = made(w)[2:]
    assert dropped.sql == "DROP DATABASE `s2`"
    assert narrowed.sql.startswith("ALTER TABLE `all`.`t` DROP COLUMN `n`, MODIFY COLUMN `name` varchar(64)")
    assert (narrowed.db, narrowed.table, narrowed.segment) == ("all", "t", dropped.segment + 1)
    assert "its rows stay there" in narrowed.alert
    assert again.sql == "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '9'"


@pytest.mark.parametrize("mode", ["", "optimistic"])
def test_a_column_that_others_filled_otherwise_is_not_the_same(mode: str) -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.add_column("s2", "t_2", integer("n", default="9"))
    with pytest.raises(SchemaError, match="have '5' at the target, but the DDL gives them '9'"):
        plan(w, routes=[SHARDS], shard_mode=mode)


def test_what_rows_without_a_column_have_in_it_is_not_a_matter_of_numbers() -> None:
    # A table that is emptied has a new number, and one that comes was made with the column.
    w = two_shards()
    added = text("n", not_null=True, default="b0")
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    w.add_column("s1", "t_1", added)
    w.create_table("s2", "t_4", [integer("id"), text("name"), added], ["id"])
    w.truncate("s1", "t_1")
    w.add_column("s2", "t_3", added)
    assert [ddl.decision for ddl in made(w)] == ["skip", "apply", "skip", "skip", "skip"]


def test_a_column_that_came_with_a_table_is_filled_with_its_default() -> None:
    # As the ALTER does it at the target.
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name"), text("n", 9, not_null=True, default="x")], ["id"])
    (joins,) = made(w)
    assert joins.sql.endswith(
        "ADD COLUMN `n` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'x'"
    )
    binlogs, jobs = logged(w)
    extras = extras_of_window(window_schemas(SchemaState(), binlogs, jobs), Naming(rules(**OPTIMISTIC)))
    assert [extra.values for extra in extras] == [{"n": "x"}] * 2
    w.add_column("s1", "t_1", text("n", 9, not_null=True, default="x"))
    assert made(w)[-1].reason == SAME.removeprefix("- ")


def test_rows_do_not_change_when_the_table_goes_whose_column_they_were_filled_from() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name"), integer("n")], ["id"])
    w.drop_column("s1", "t_1", "n")
    with pytest.raises(SchemaError, match="rows of tables without it have '5' at the target, and would have None"):
        made(w)
