"""`shard-mode = "optimistic"`: the target's definition holds the rows of all its tables; no table needs that shape."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from support.workload import Workload, integer, text
from test_judging import SHARDS, logged, plan, rules, two_shards

from binlake.config import Replication
from binlake.ddl.ddls import build_window_schemas
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.sharedrows import list_extras
from binlake.ddl.targets import Naming, TargetTables
from binlake.errors import SchemaError
from binlake.rows.schema import Action, SchemaState
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.workload.spec import Col, build_column_json

OPTIMISTIC = {"routes": [SHARDS], "shard_mode": "optimistic"}


def alter(w: Workload, db: str, table: str, query: str, *columns: Col) -> int:
    """An ALTER of one shard that leaves exactly `columns`; existing columns keep their ids."""
    info = json.loads(json.dumps(w.table(db, table).raw))
    known = {column["name"]["O"]: column for column in info["cols"]}
    top = max(column["id"] for column in info["cols"])
    info["cols"] = []
    for offset, column in enumerate(columns):
        former = known.get(column.name)
        top += former is None
        made = build_column_json(column, former["id"] if former else top, offset, primary=column.name == "id")
        info["cols"].append({**made, "origin_default": former["origin_default"] if former else column.default})
    w._put(db, info)
    return w._ddl(Action.MULTI_SCHEMA_CHANGE, db, table, query, info)


def plan_changes(w: Workload) -> list[LandedDdl]:
    """The planned DDL after the four that create the shards."""
    return plan(w, **OPTIMISTIC)[4:]


def list_statements(w: Workload) -> list[str]:
    return [ddl.sql if ddl.decision == "apply" else f"- {ddl.reason}" for ddl in plan_changes(w)]


SAME = "- shared table: the target has the shape that all its tables need"


def test_different_added_columns_are_joined() -> None:  # R-15 S4-03
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    w.add_column("s2", "t_2", integer("b", default="2"))
    assert list_statements(w) == ["ALTER TABLE `all`.`t` ADD COLUMN `a` INT(11) DEFAULT '1'",
                       "ALTER TABLE `all`.`t` ADD COLUMN `b` INT(11) DEFAULT '2'"]  # fmt: skip
    names = [[column.name for column in ddl.after.tables[0].columns] for ddl in plan_changes(w)]
    assert names == [["id", "name", "a"], ["id", "name", "a", "b"]]
    binlogs, jobs = logged(w)
    found = list_extras(build_window_schemas(SchemaState(), binlogs, jobs), Naming(rules(**OPTIMISTIC)))
    assert {(extra.db, *extra.values.items()) for extra in found} == {
        ("s2", ("a", "1")), ("s1", ("b", "2"))
    }  # fmt: skip
    w.add_column("s1", "t_1", integer("b", default="2"))
    w.add_column("s2", "t_2", integer("a", default="1"))
    assert list_statements(w)[2:] == [SAME, SAME]


def test_column_is_dropped_when_no_shard_has_it() -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, integer("a"))
        w.add_column(db, table, integer("b"))
    w.drop_column("s1", "t_1", "a")
    w.drop_column("s2", "t_2", "b")
    w.drop_column("s1", "t_1", "b")
    w.drop_column("s2", "t_2", "a")
    assert list_statements(w)[4:] == [
        SAME,
        SAME,
        "ALTER TABLE `all`.`t` DROP COLUMN `b`",
        "ALTER TABLE `all`.`t` DROP COLUMN `a`",
    ]


def test_columns_that_the_target_already_has_are_left_out_of_a_statement() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    columns = [integer("id"), text("name"), integer("a", default="1"), text("c", 9, not_null=True, default="x")]
    alter(w, "s2", "t_2", "ALTER TABLE t_2 ADD COLUMN a INT DEFAULT 1, ADD COLUMN c VARCHAR(9) NOT NULL DEFAULT 'x'",
          *columns)  # fmt: skip
    assert list_statements(w)[1] == (
        "ALTER TABLE `all`.`t` ADD COLUMN `c` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'x'"
    )


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        (text("name", 100), text("name", 80), "varchar(100)"),
        (text("name", 100, not_null=True), text("name", 80), "varchar(100)"),
        (replace(text("name"), tp=t.VARCHAR, flen=10), text("name", 64), "varchar(64)"),
    ],
    ids=["longer text", "nullable", "shorter text"],
)
def test_joined_type_holds_all_values(first: Col, second: Col, joined: str) -> None:
    w = two_shards()
    alter(w, "s1", "t_1", "ALTER TABLE t_1 MODIFY COLUMN name x", integer("id"), first)
    alter(w, "s2", "t_2", "ALTER TABLE t_2 MODIFY COLUMN name x", integer("id"), second)
    naming = Naming(rules(**OPTIMISTIC))
    found = TargetTables(SchemaState().fold(logged(w)[1]), naming).find("all", "t")
    assert found is not None
    column = found.find_column("name")
    assert column is not None
    assert (column.type_text, column.not_null) == (joined, False)


NUMBERS = [("tinyint", t.TINY), ("smallint", t.SHORT), ("int", t.LONG), ("bigint", t.LONGLONG)]


@pytest.mark.parametrize(("name", "tp"), NUMBERS)
def test_numbers_widen_with_the_first_shard_and_narrow_with_the_last(name: str, tp: int) -> None:
    w = two_shards()
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.add_column(db, table, Col("n", t.LONG, 11))
    changed = [integer("id"), text("name"), Col("n", tp, 11)]
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        alter(w, db, table, f"ALTER TABLE {table} MODIFY COLUMN n {name}", *changed)
    own = f"ALTER TABLE `all`.`t` MODIFY COLUMN n {name}"
    assert list_statements(w)[2:] == {"int": [SAME, SAME], "bigint": [own, SAME]}.get(name, [SAME, own])


CONFLICTS = [
    (Col("n", t.LONG, 11), Col("n", t.LONG, 11, unsigned=True), "s1.t_1 has int, s2.t_2 has int unsigned"),
    (text("n"), integer("n"), r"varchar\(64\) utf8mb4_bin, s2.t_2 has int"),
    (Col("n", t.NEWDECIMAL, 10, 2), Col("n", t.NEWDECIMAL, 12, 4), r"decimal\(10,2\).*decimal\(12,4\)"),
    (Col("n", t.ENUM, -1, -1, elems=("a", "b")), Col("n", t.ENUM, -1, -1, elems=("b", "a")), r"enum\('a','b'\)"),
    (integer("n", default="1"), integer("n", default="2"), "have '1' at the target, but the DDL gives them '2'"),
]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    CONFLICTS,
    ids=["unsigned", "text and number", "decimals", "enums in another order", "fill values"],
)
def test_conflict_names_both_tables_and_the_remedies(first: Col, second: Col, why: str) -> None:
    w = two_shards()
    w.add_column("s1", "t_1", first)
    at = w.add_column("s2", "t_2", second)
    with pytest.raises(SchemaError, match=why) as error:
        plan_changes(w)
    assert error.value.where["commit_ts"] == str(at)
    assert "ignore-txn-commit-ts" in error.value.hint
    assert plan(w, at, **OPTIMISTIC)[-1].reason == "ignore-txn-commit-ts"


@pytest.mark.parametrize("same_number", [True, False])
def test_renamed_column_is_a_conflict(same_number: bool) -> None:
    # Rows of the renaming shard would keep their values under the old name, which the other shard still has.
    w = two_shards()
    info: dict[str, Any] = json.loads(json.dumps(w.table("s1", "t_1").raw))
    info["cols"][1]["name"] = {"O": "title", "L": "title"}
    info["cols"][1]["id"] += 0 if same_number else 7
    w._put("s1", info)
    what = "RENAME COLUMN name TO" if same_number else "CHANGE COLUMN name"
    w._ddl(Action.MODIFY_COLUMN, "s1", "t_1", f"ALTER TABLE t_1 {what} title VARCHAR(64)", info)
    with pytest.raises(SchemaError, match="a column is renamed"):
        plan_changes(w)


@pytest.mark.parametrize(
    "query",
    [
        "CHANGE {} {} VARCHAR(90)", "CHANGE COLUMN {} {} VARCHAR(90)", "CHANGE {} {} TEXT",
        "CHANGE COLUMN IF EXISTS {} {} TEXT",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("old", "new"), [("name", "title"), ("NAME", "name")])
def test_change_with_two_different_names_is_a_rename(query: str, old: str, new: str) -> None:
    """With another type the column gets another id, so only the text shows the rename."""
    w = two_shards()
    info: dict[str, Any] = json.loads(json.dumps(w.table("s1", "t_1").raw))
    info["cols"][1] |= {"name": {"O": new, "L": new}, "id": 9}
    info["cols"][1]["type"]["Flen"] = 90
    w._put("s1", info)
    w._ddl(Action.MODIFY_COLUMN, "s1", "t_1", f"ALTER TABLE t_1 {query.format(old, new)}", info)
    if new != "name":
        with pytest.raises(SchemaError, match="a column is renamed"):
            plan_changes(w)
        return
    [found] = plan_changes(w)
    assert (found.decision, found.sql) == ("apply", f"ALTER TABLE `all`.`t` {query.format(old, new)}")


def test_joining_table_widens_the_target_and_a_leaving_one_narrows_it() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name", 90), integer("x")], ["id"])
    w.drop_table("s2", "t_3")
    joins, leaves = plan_changes(w)
    assert joins.sql == ("ALTER TABLE `all`.`t` MODIFY COLUMN `name` varchar(90) CHARACTER SET utf8mb4 COLLATE"
                         " utf8mb4_bin NULL, ADD COLUMN `x` int NULL")  # fmt: skip
    assert leaves.sql.startswith("ALTER TABLE `all`.`t` DROP COLUMN `x`, MODIFY COLUMN `name` varchar(64)")
    assert "its rows stay there" in leaves.alert
    assert joins.action == leaves.action == Action.MULTI_SCHEMA_CHANGE


def test_unset_mode_keeps_the_data_hash() -> None:
    # The hash of an existing lake must not change.
    made = [Replication.model_validate({"name": "demo", "lake": {"path": "x"}, **more}).compute_data_hash()
            for more in ({}, {"shard-mode": ""}, {"shard-mode": "optimistic"})]  # fmt: skip
    assert made[0] == made[1] != made[2]


def test_dropped_database_narrows_the_target_by_its_tables() -> None:
    # Otherwise a column that is added again would still exist, with its old values.
    w = two_shards()
    w.add_column("s2", "t_2", integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name", 90)], ["id"])
    for place in [place for place in w._tables if place[0] == "s2"]:
        del w._tables[place]
    w._ddl(Action.DROP_SCHEMA, "s2", "", "DROP DATABASE `s2`")
    w.add_column("s1", "t_1", integer("n", default="9"))
    dropped, narrowed, again = plan_changes(w)[2:]
    assert dropped.sql == "DROP DATABASE `s2`"
    assert narrowed.sql.startswith("ALTER TABLE `all`.`t` DROP COLUMN `n`, MODIFY COLUMN `name` varchar(64)")
    assert (narrowed.db, narrowed.table, narrowed.segment) == ("all", "t", dropped.segment + 1)
    assert "its rows stay there" in narrowed.alert
    assert again.sql == "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '9'"


@pytest.mark.parametrize("mode", ["", "optimistic"])
def test_column_filled_with_different_values_is_a_conflict(mode: str) -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.add_column("s2", "t_2", integer("n", default="9"))
    with pytest.raises(SchemaError, match="have '5' at the target, but the DDL gives them '9'"):
        plan(w, routes=[SHARDS], shard_mode=mode)


def test_fill_value_does_not_depend_on_column_ids() -> None:
    # A truncated table gets a new id, and a newly created table was created with the column.
    w = two_shards()
    added = text("n", not_null=True, default="b0")
    w.create_table("s2", "t_3", [integer("id"), text("name")], ["id"])
    w.add_column("s1", "t_1", added)
    w.create_table("s2", "t_4", [integer("id"), text("name"), added], ["id"])
    w.truncate("s1", "t_1")
    w.add_column("s2", "t_3", added)
    assert [ddl.decision for ddl in plan_changes(w)] == ["skip", "apply", "skip", "skip", "skip"]


def test_column_of_a_new_table_is_filled_with_its_default() -> None:
    # As the ALTER does it at the target.
    w = two_shards()
    w.create_table("s2", "t_3", [integer("id"), text("name"), text("n", 9, not_null=True, default="x")], ["id"])
    (joins,) = plan_changes(w)
    assert joins.sql.endswith(
        "ADD COLUMN `n` varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'x'"
    )
    binlogs, jobs = logged(w)
    extras = list_extras(build_window_schemas(SchemaState(), binlogs, jobs), Naming(rules(**OPTIMISTIC)))
    assert [extra.values for extra in extras] == [{"n": "x"}] * 2
    w.add_column("s1", "t_1", text("n", 9, not_null=True, default="x"))
    assert plan_changes(w)[-1].reason == SAME.removeprefix("- ")


def test_rows_keep_fill_values_after_the_filling_table_is_dropped() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    w.create_table("s2", "t_3", [integer("id"), text("name"), integer("n")], ["id"])
    w.drop_column("s1", "t_1", "n")
    with pytest.raises(SchemaError, match="rows of tables without it have '5' at the target, and would have None"):
        plan_changes(w)
