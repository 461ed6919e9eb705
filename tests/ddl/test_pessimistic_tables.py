"""`shard-mode = "pessimistic"` while tables are dropped, created and renamed, and with rows that must not be mixed."""

from __future__ import annotations

import json

import pytest
from support.workload import Workload, integer, text
from test_judging import logged, rename, rules, two_shards
from test_optimistic import alter
from test_pessimistic import PESSIMISTIC, plan_locked, resolve

from binlake.ddl.ddls import build_window_schemas, plan_locked_ddls
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.shardlocks import NEVER, Locks, Resolution
from binlake.ddl.sharedrows import list_extras
from binlake.ddl.targets import Naming
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action, SchemaState
from binlake.rows.schema import mysqltypes as t
from binlake.testkit.workload.spec import Col

PLAIN, WIDE = [integer("id"), text("name")], [integer("id"), text("name"), integer("n", default="5")]
ADD_N = "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '5'"


def build_one_ahead() -> Workload:
    """Two tables of one target; s1.t_1 has one column more."""
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    return w


def drop_database(w: Workload, name: str) -> int:
    for place in [place for place in w._tables if place[0] == name]:
        del w._tables[place]
    return w._ddl(Action.DROP_SCHEMA, name, "", f"DROP DATABASE `{name}`")


def run(w: Workload, **more: object) -> list[str]:
    """The statements that run after the first four DDL."""
    found, _ = plan_locked_ddls(SchemaState(), *logged(w), rules(**{**PESSIMISTIC, **more}))
    return [ddl.sql for ddl in found[4:] if ddl.opens_segment]


def follow(w: Workload, before: int, lo: int, held: Locks, *resolutions: Resolution) -> tuple[list[LandedDdl], Locks]:
    """Plan the window after `lo`; `before`: the number of DDL logged until then."""
    binlogs, jobs = logged(w)
    base = SchemaState().fold([job for job in jobs if job[0] <= lo])
    return plan_locked_ddls(
        base, binlogs[before:], jobs[before:], rules(**PESSIMISTIC), lo=lo, before=held, resolutions=resolutions
    )


@pytest.mark.parametrize("alike", [False, True])
def test_table_of_a_dropped_database_is_not_awaited(alike: bool) -> None:
    w = build_one_ahead()
    if alike:
        # Both databases go into one target database, so the DROP does not run.
        routes = [{"schema-pattern": "s?", "target-schema": "all"}, *PESSIMISTIC["routes"]]
    at = drop_database(w, "s2")
    assert run(w, **({"routes": routes} if alike else {})) == ([] if alike else ["DROP DATABASE `s2`"]) + [ADD_N]
    found, locks = plan_locked(w)
    assert [(ddl.commit_ts, ddl.db, ddl.table) for ddl in found[-2:]] == [(at, "s2", ""), (at, "all", "t")]
    assert "no table waits for s2.t_2 any more" in found[-1].alert
    assert [hold.released for hold in locks.holds] == [found[-1].since]
    assert not locks.still_open


@pytest.mark.parametrize("how", ["ignored", "filtered", "renamed out"])
def test_table_removed_without_an_applied_ddl_is_not_awaited(how: str) -> None:
    w = build_one_ahead()
    more: dict[str, object] = {}
    ignored: list[int] = []
    if how == "renamed out":
        rename(w, ("s2", "t_2"), ("s2", "old"), "RENAME TABLE `s2`.`t_2` TO `s2`.`old`")
        more["filter"] = {"ignore-table": [{"db-name": "s2", "tbl-name": "old"}]}
    else:
        ignored = [w.drop_table("s2", "t_2")] if how == "ignored" else []
        if how == "filtered":
            w.drop_table("s2", "t_2")
            more["filters"] = [{"schema-pattern": "s2", "events": ["drop table"], "action": "Ignore"}]
    found, locks = plan_locked_ddls(SchemaState(), *logged(w), rules(**{**PESSIMISTIC, **more}), ignored)
    assert found[-1].sql == ADD_N
    assert not locks.still_open


def test_rows_of_a_target_without_tables_are_never_released() -> None:
    w = build_one_ahead()
    w.create_table("s1", "t_3", PLAIN, ["id"])
    w.drop_table("s2", "t_2")
    drop_database(w, "s1")
    found, locks = plan_locked(w)
    assert found[-1].alert == "waiting rows of s1.t_1 never reach all.t: all its tables are gone"
    (hold,) = locks.holds
    assert (hold.released, hold.waits, bool(locks.still_open)) == (NEVER, False, False)
    assert Locks.from_dict(locks.to_dict()).to_dict() == locks.to_dict()
    # A new table with that name starts from scratch.
    w.create_database("s1")
    w.create_table("s1", "t_1", PLAIN, ["id"])
    assert (run(w)[-1].split(" (")[0], plan_locked(w)[1].list_definitions_at(w.clock())) == (
        "CREATE DATABASE IF NOT EXISTS `all`; CREATE TABLE `all`.`t`",
        {},
    )


def test_new_table_with_the_name_of_a_waiting_one_does_not_have_its_steps() -> None:
    w = build_one_ahead()
    w.drop_table("s1", "t_1")
    w.create_table("s1", "t_1", PLAIN, ["id"])
    w.add_column("s2", "t_2", integer("n", default="5"))
    found, locks = plan_locked(w)
    assert found[-1].reason == "shard lock: waits for s1.t_1"
    # The new table's rows do not wait, and it has its own definition.
    assert locks.list_held_tables(w.clock()) == {("s2", "t_2")}
    assert set(locks.list_definitions_at(w.clock())) == {("s2", "t_2")}
    w.add_column("s1", "t_1", integer("n", default="5"))
    assert run(w) == [ADD_N]
    assert not plan_locked(w)[1].still_open


def test_new_table_with_the_name_of_one_passed_over_is_awaited() -> None:
    w = build_one_ahead()
    _, locks = resolve(w, plan_locked(w)[1])
    before, lo = len(logged(w)[0]), w.clock()
    w.drop_table("s2", "t_2")
    w.create_table("s2", "t_2", WIDE, ["id"])
    w.add_column("s1", "t_1", integer("m"))
    found, later = follow(w, before, lo, locks.still_open)
    assert found[-1].reason == "shard lock: waits for s2.t_2"
    assert later.still_open.passed == ()


@pytest.mark.parametrize("name", ["t_9", "T_1"])
def test_table_can_be_renamed_while_its_rows_wait(name: str) -> None:
    w = build_one_ahead()
    w.add_column("s1", "t_1", integer("m"))
    rename(w, ("s1", "t_1"), ("s1", name), f"RENAME TABLE `s1`.`t_1` TO `s1`.`{name}`")
    w._tables["s1", name] = w._tables.pop(("s1", name))
    w.rows["s1", name] = []
    _, locks = plan_locked(w)
    assert locks.list_held_tables(w.clock()) == {("s1", name)}
    columns = [column.name for column in locks.list_definitions_at(w.clock())["s1", name.lower()].columns]
    assert columns == ["id", "name"]
    w.add_column("s2", "t_2", integer("n", default="5"))
    w.add_column("s1", name, integer("k"))
    found, locks = plan_locked(w)
    assert run(w) == [ADD_N]
    # Each range of rows keeps the name under which it was logged; a step runs once.
    assert [(hold.source[1], hold.waits) for hold in sorted(locks.holds, key=lambda hold: hold.since)
            if hold.source[0] == "s1"] == [("t_1", False), ("t_1", True), (name, True), (name, True)]  # fmt: skip
    w.add_column("s2", "t_2", integer("m"))
    w.add_column("s2", "t_2", integer("k"))
    assert [sql.split("COLUMN ")[1][:3] for sql in run(w)] == ["`n`", "`m`", "`k`"]
    assert not plan_locked(w)[1].still_open
    assert found[-1].reason == "shard lock: waits for s2.t_2"


def test_table_passed_over_can_be_renamed() -> None:
    w = build_one_ahead()
    _, locks = resolve(w, plan_locked(w)[1])
    before, lo = len(logged(w)[0]), w.clock()
    rename(w, ("s2", "t_2"), ("s2", "t_8"), "RENAME TABLE `s2`.`t_2` TO `s2`.`t_8`")
    found, later = follow(w, before, lo, locks.still_open)
    assert [ddl.decision for ddl in found] == ["skip"]
    assert [one.source for one in later.still_open.passed] == [("s2", "t_8")]
    binlogs, jobs = (some[before:] for some in logged(w))
    base = SchemaState().fold(logged(w)[1][:before])
    extras = list_extras(build_window_schemas(base, binlogs, jobs, lo), Naming(rules(**PESSIMISTIC)), later, lo)
    assert [(extra.table, extra.values) for extra in extras] == [("t_2", {"n": "5"}), ("t_8", {"n": "5"})]


def test_rows_of_a_table_passed_over_get_a_column_when_the_target_does() -> None:
    # Not from the start of the window, because the target does not have the column there.
    w = build_one_ahead()
    held, before, lo = plan_locked(w)[1].still_open, len(logged(w)[0]), w.clock()
    w.add_column("s1", "t_1", integer("m", default="6"))
    found, later = follow(w, before, lo, held, Resolution(("all", "t"), ()))
    assert [ddl.decision for ddl in found] == ["apply", "apply"]
    binlogs, jobs = (some[before:] for some in logged(w))
    base = SchemaState().fold(logged(w)[1][:before])
    extras = list_extras(build_window_schemas(base, binlogs, jobs, lo), Naming(rules(**PESSIMISTIC)), later, lo)
    since = found[1].since
    assert [(extra.db, extra.since, extra.values) for extra in extras] == [
        ("s2", 0, {"n": "5"}), ("s2", since, {"n": "5", "m": "6"})
    ]  # fmt: skip


def test_rows_of_a_table_passed_over_lack_a_new_column_until_the_target_has_it() -> None:
    # The table has an extra column, so its own definition does not say what the target has.
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    w.add_column("s2", "t_2", integer("b", default="2"))
    held, before, lo = plan_locked(w)[1].still_open, len(logged(w)[0]), w.clock()
    w.add_column("s1", "t_1", integer("m", default="6"))
    found, locks = follow(w, before, lo, held, Resolution(("all", "t"), (("s2", "t_2"),)))
    assert [ddl.decision for ddl in found] == ["apply", "apply"]
    since = found[1].since
    shown = [
        [column.name for column in locks.list_definitions_at(ts)["s2", "t_2"].columns]
        for ts in (lo + 1, since - 1, since)
    ]
    assert shown == [["id", "name", "a"], ["id", "name", "a"], ["id", "name", "a", "m"]]


def test_held_row_gets_a_readded_column_once() -> None:
    # The column was dropped and added again: the row gets the value of the column with which it is released.
    w = two_shards()
    w.create_table("s2", "t_3", PLAIN, ["id"])
    required = text("name", not_null=True)
    for db, table in (("s1", "t_1"), ("s2", "t_2"), ("s2", "t_3")):
        alter(w, db, table, f"ALTER TABLE {table} MODIFY COLUMN name x", integer("id"), required)
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.drop_column(db, table, "name")
        w.add_column(db, table, integer("name", default="7"))
    w.drop_table("s2", "t_3")
    _, locks = plan_locked(w)
    schemas = build_window_schemas(SchemaState(), *logged(w))
    assert list_extras(schemas, Naming(rules(**PESSIMISTIC)), locks) == []
    assert [dict(hold.filled) for hold in locks.holds[-4:]] == [{"name": "7"}, {}, {"name": "7"}, {}]


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ("name", "title", "label"),
        (Col("n", t.TIMESTAMP, 19), Col("n", t.DATETIME, 19), None),
        (Col("n", t.FLOAT, 12), Col("n", t.DOUBLE, 22), None),
        (text("n"), Col("n", t.BLOB, 65535), None),
    ],
    ids=["rename", "timestamp to datetime", "float to double", "text to blob"],
)
def test_rows_wait_for_a_separate_step_if_a_later_one_would_read_them_differently(
    first: object, second: object, third: str | None
) -> None:
    w = two_shards()
    steps: list[list[Col]]
    if third is None:
        assert isinstance(first, Col)
        assert isinstance(second, Col)
        steps = [[*PLAIN, first], [*PLAIN, second]]
        for step in steps:
            alter(w, "s1", "t_1", "ALTER TABLE t_1 MODIFY COLUMN n x", *step)
    else:
        for name in (second, third):
            info = json.loads(json.dumps(w.table("s1", "t_1").raw))
            info["cols"][1]["name"] = {"O": name, "L": name}
            w._put("s1", info)
            w._ddl(Action.MODIFY_COLUMN, "s1", "t_1", f"ALTER TABLE t_1 RENAME COLUMN x TO {name}", info)
    held, before, lo = plan_locked(w)[1].still_open, len(logged(w)[0]), w.clock()
    w.drop_table("s2", "t_2")
    # The first step runs with the DROP, the second before the next window.
    found, locks = follow(w, before, lo, held)
    assert (len(found), [hold.waits for hold in locks.holds]) == (1, [False, True])
    lo = w.clock()
    found, locks = follow(w, len(logged(w)[0]), lo, locks.still_open)
    assert [(ddl.commit_ts, ddl.segment, ddl.decision) for ddl in found] == [(lo + 1, 1, "apply")]
    assert [hold.released for hold in locks.holds] == [lo + 1]
    assert not locks.still_open


def test_steps_of_one_target_run_one_at_a_time_before_a_window() -> None:
    # An operator's command and automatic steps share one position, where a mirror accepts one DDL per table.
    w = two_shards()
    for kind, length in ((t.TIMESTAMP, 19), (t.DATETIME, 19)):
        alter(w, "s1", "t_1", "ALTER TABLE t_1 MODIFY COLUMN n x", *PLAIN, Col("n", kind, length))
    found, locks = resolve(w, plan_locked(w)[1])
    assert (len(found), [hold.waits for hold in locks.holds]) == (1, [False, True])
    found, locks = follow(w, len(logged(w)[0]), w.clock(), locks.still_open)
    assert [ddl.decision for ddl in found] == ["apply"]
    assert not locks.still_open.holds


def test_steps_of_several_targets_run_with_one_ddl() -> None:
    w = build_one_ahead()
    for number in (1, 2):
        w.create_table(f"s{number}", f"u_{number}", PLAIN, ["id"])
    w.add_column("s1", "u_1", integer("n", default="5"))
    drop_database(w, "s2")
    others = {"schema-pattern": "s?", "table-pattern": "u_*", "target-schema": "all", "target-table": "u"}
    ran = run(w, routes=[*PESSIMISTIC["routes"], others])
    assert ran[-3:] == ["DROP DATABASE `s2`", ADD_N, ADD_N.replace("`t`", "`u`")]


def test_rows_of_a_dropped_table_are_released_with_its_last_step() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", PLAIN, ["id"])
    for db, table in (("s1", "t_1"), ("s2", "t_3")):
        w.add_column(db, table, integer("n", default="5"))
    w.drop_table("s2", "t_3")
    w.add_column("s1", "t_1", integer("m", default="6"))
    w.drop_table("s2", "t_2")
    # The other table continues: both of its steps run at once.
    assert run(w) == [f"{ADD_N}; ALTER TABLE `all`.`t` ADD COLUMN `m` INT(11) DEFAULT '6'"]
    filled = [(hold.source[1], hold.waits, dict(hold.filled)) for hold in plan_locked(w)[1].holds]
    assert filled == [("t_1", False, {"m": "6"}), ("t_3", False, {"m": "6"}), ("t_1", False, {})]


def test_column_filled_with_different_values_is_a_conflict() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="1"))
    w.add_column("s2", "t_2", integer("n", default="9"))
    with pytest.raises(SchemaError, match=r"rows of s1.t_1 were filled with '1', rows of s2.t_2 with '9'"):
        plan_locked(w)


def test_remedy_for_a_column_filled_with_different_values() -> None:
    # One DDL is done by hand, and its table passed over: its rows have the added column, and the table is not separate.
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="1"))
    by_hand = w.add_column("s2", "t_2", integer("n", default="9"))
    _, locks = plan_locked_ddls(SchemaState(), *logged(w), rules(**PESSIMISTIC), [by_hand])
    (row,), locks = resolve(w, locks, ("s2", "t_2"))
    assert row.sql == "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '1'"
    before, lo = len(logged(w)[0]), w.clock()
    w.add_column("s1", "t_1", integer("m"))
    w.add_column("s2", "t_2", integer("m"))
    found, later = follow(w, before, lo, locks.still_open)
    assert [ddl.decision for ddl in found] == ["apply", "skip"]
    assert not later.still_open


def test_column_filled_with_the_time_of_the_ddl_is_reported() -> None:
    w = two_shards()
    for number, (db, table) in enumerate((("s1", "t_1"), ("s2", "t_2"))):
        w.add_column(db, table, Col("at", t.DATETIME, 19, default="CURRENT_TIMESTAMP"))
        for info in (w.table(db, table).raw, w.jobs[-1]["binlog"]["TableInfo"]):
            info["cols"][-1]["origin_default"] = f"2026-11-23 10:00:0{number}"
    found, _ = plan_locked(w)
    assert found[-1].decision == "apply"
    assert "have the time of their own DDL" in found[-1].alert


def test_table_whose_rows_would_change_cannot_be_passed_over() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    alter(w, "s2", "t_2", "ALTER TABLE t_2 MODIFY COLUMN name BLOB", integer("id"), Col("name", t.BLOB, 65535))
    with pytest.raises(ConfigError, match=r"column name: rows of s2\.t_2"):
        resolve(w, plan_locked(w)[1], ("s2", "t_2"))
    # Neither may a table that was passed over, or the others, become so later.
    for table in ("t_1", "t_2"):
        w = build_one_ahead()
        _, locks = resolve(w, plan_locked(w)[1])
        before, lo = len(logged(w)[0]), w.clock()
        own = [integer("n", default="5")] * (table == "t_1")
        alter(w, f"s{table[-1]}", table, "ALTER TABLE t MODIFY COLUMN name BLOB", integer("id"),
              Col("name", t.BLOB, 65535), *own)  # fmt: skip
        with pytest.raises(SchemaError, match=r"column name: rows of s2\.t_2"):
            follow(w, before, lo, locks.still_open)


def test_table_whose_waiting_rows_would_change_cannot_be_passed_over() -> None:
    # The table has the target's column again, but rows were written while it had another type.
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    for column in (Col("name", t.BLOB, 65535), text("name")):
        alter(w, "s2", "t_2", "ALTER TABLE t_2 MODIFY COLUMN name x", integer("id"), column)
    with pytest.raises(ConfigError, match=r"column name: rows of s2\.t_2"):
        resolve(w, plan_locked(w)[1], ("s2", "t_2"))


def test_table_truncated_while_its_rows_wait_keeps_its_steps() -> None:
    w = build_one_ahead()
    w.add_column("s1", "t_1", integer("m"))
    w.truncate("s1", "t_1")
    w.add_column("s2", "t_2", integer("n", default="5"))
    assert run(w) == [ADD_N]
    assert [column.name for column in plan_locked(w)[1].list_definitions_at(w.clock())["s1", "t_1"].columns] == [
        "id",
        "name",
        "n",
    ]
    w.add_column("s2", "t_2", integer("m"))
    assert not plan_locked(w)[1].still_open
