"""`shard-mode = "pessimistic"` where tables go, come and are renamed while rows wait, and where rows must not meet."""

from __future__ import annotations

import json

import pytest
from support.workload import Workload, integer, text
from test_judging import logged, rename, rules, two_shards
from test_optimistic import alter
from test_pessimistic import PESSIMISTIC, planned, resolved

from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import Action, SchemaState
from binlake.rows.schema import mysqltypes as t
from binlake.window.ddls import plan_locked_ddls, window_schemas
from binlake.window.definitions import LandedDdl
from binlake.window.extras import extras_of_window
from binlake.window.shardlocks import NEVER, Locks, Resolution
from binlake.window.targets import Naming
from pump_service.workload.definitions import Col

PLAIN, WIDE = [integer("id"), text("name")], [integer("id"), text("name"), integer("n", default="5")]
ADD_N = "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '5'"


def one_ahead() -> Workload:
    """Two tables of one target, of which s1.t_1 has a column more."""
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="5"))
    return w


def drop_database(w: Workload, name: str) -> int:
    for place in [place for place in w._tables if place[0] == name]:
        del w._tables[place]
    return w._ddl(Action.DROP_SCHEMA, name, "", f"DROP DATABASE `{name}`")


def run(w: Workload, **more: object) -> list[str]:
    """What runs behind the first four DDL."""
    found, _ = plan_locked_ddls(SchemaState(), *logged(w), rules(**{**PESSIMISTIC, **more}))
    return [ddl.sql for ddl in found[4:] if ddl.opens_segment]


def follow(w: Workload, before: int, lo: int, held: Locks, *resolutions: Resolution) -> tuple[list[LandedDdl], Locks]:
    """The window behind `lo`, where so many DDL were logged `before`."""
    binlogs, jobs = logged(w)
    base = SchemaState().fold([job for job in jobs if job[0] <= lo])
    return plan_locked_ddls(
        base, binlogs[before:], jobs[before:], rules(**PESSIMISTIC), lo=lo, before=held, resolutions=resolutions
    )


@pytest.mark.parametrize("alike", [False, True])
def test_nobody_waits_for_a_table_whose_database_is_dropped(alike: bool) -> None:
    w = one_ahead()
    if alike:
        # Of a target database that both go into, the DROP does not run.
        routes = [{"schema-pattern": "s?", "target-schema": "all"}, *PESSIMISTIC["routes"]]
    at = drop_database(w, "s2")
    assert run(w, **({"routes": routes} if alike else {})) == ([] if alike else ["DROP DATABASE `s2`"]) + [ADD_N]
    found, locks = planned(w)
    assert [(ddl.commit_ts, ddl.db, ddl.table) for ddl in found[-2:]] == [(at, "s2", ""), (at, "all", "t")]
    assert "s2.t_2 is not waited for any more" in found[-1].alert
    assert [hold.released for hold in locks.holds] == [found[-1].since]
    assert not locks.still_open


@pytest.mark.parametrize("how", ["ignored", "filtered", "renamed out"])
def test_nobody_waits_for_a_table_that_goes_without_its_ddl(how: str) -> None:
    w = one_ahead()
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


def test_rows_of_a_target_whose_tables_are_all_gone_never_come() -> None:
    w = one_ahead()
    w.create_table("s1", "t_3", PLAIN, ["id"])
    w.drop_table("s2", "t_2")
    drop_database(w, "s1")
    found, locks = planned(w)
    assert found[-1].alert == "waiting rows of s1.t_1 never come to all.t: its tables are all gone"
    (hold,) = locks.holds
    assert (hold.released, hold.waits, bool(locks.still_open)) == (NEVER, False, False)
    assert Locks.from_dict(locks.to_dict()).to_dict() == locks.to_dict()
    # A table of that name begins anew.
    w.create_database("s1")
    w.create_table("s1", "t_1", PLAIN, ["id"])
    assert (run(w)[-1].split(" (")[0], planned(w)[1].definitions_at(w.clock())) == ("CREATE TABLE `all`.`t`", {})


def test_a_table_that_comes_under_the_name_of_one_that_waits_has_not_its_steps() -> None:
    w = one_ahead()
    w.drop_table("s1", "t_1")
    w.create_table("s1", "t_1", PLAIN, ["id"])
    w.add_column("s2", "t_2", integer("n", default="5"))
    found, locks = planned(w)
    assert found[-1].reason == "shard lock: waits for s1.t_1"
    # The new table's rows do not wait, and it has its own definition.
    assert locks.held_tables(w.clock()) == {("s2", "t_2")}
    assert set(locks.definitions_at(w.clock())) == {("s2", "t_2")}
    w.add_column("s1", "t_1", integer("n", default="5"))
    assert run(w) == [ADD_N]
    assert not planned(w)[1].still_open


def test_a_table_that_comes_under_the_name_of_one_passed_over_is_waited_for() -> None:
    w = one_ahead()
    _, locks = resolved(w, planned(w)[1])
    before, lo = len(logged(w)[0]), w.clock()
    w.drop_table("s2", "t_2")
    w.create_table("s2", "t_2", WIDE, ["id"])
    w.add_column("s1", "t_1", integer("m"))
    found, later = follow(w, before, lo, locks.still_open)
    assert found[-1].reason == "shard lock: waits for s2.t_2"
    assert later.still_open.passed == ()


@pytest.mark.parametrize("name", ["t_9", "T_1"])
def test_a_table_is_renamed_while_its_rows_wait(name: str) -> None:
    w = one_ahead()
    w.add_column("s1", "t_1", integer("m"))
    rename(w, ("s1", "t_1"), ("s1", name), f"RENAME TABLE `s1`.`t_1` TO `s1`.`{name}`")
    w._tables["s1", name] = w._tables.pop(("s1", name))
    w.rows["s1", name] = []
    _, locks = planned(w)
    assert locks.held_tables(w.clock()) == {("s1", name)}
    columns = [column.name for column in locks.definitions_at(w.clock())["s1", name.lower()].columns]
    assert columns == ["id", "name"]
    w.add_column("s2", "t_2", integer("n", default="5"))
    w.add_column("s1", name, integer("k"))
    found, locks = planned(w)
    assert run(w) == [ADD_N]
    # Each stretch of rows under the name that it was logged with; a step runs once.
    assert [(hold.source[1], hold.waits) for hold in sorted(locks.holds, key=lambda hold: hold.since)
            if hold.source[0] == "s1"] == [("t_1", False), ("t_1", True), (name, True), (name, True)]  # fmt: skip
    w.add_column("s2", "t_2", integer("m"))
    w.add_column("s2", "t_2", integer("k"))
    assert [sql.split("COLUMN ")[1][:3] for sql in run(w)] == ["`n`", "`m`", "`k`"]
    assert not planned(w)[1].still_open
    assert found[-1].reason == "shard lock: waits for s2.t_2"


def test_a_table_that_is_passed_over_may_be_renamed() -> None:
    w = one_ahead()
    _, locks = resolved(w, planned(w)[1])
    before, lo = len(logged(w)[0]), w.clock()
    rename(w, ("s2", "t_2"), ("s2", "t_8"), "RENAME TABLE `s2`.`t_2` TO `s2`.`t_8`")
    found, later = follow(w, before, lo, locks.still_open)
    assert [ddl.decision for ddl in found] == ["skip"]
    assert [one.source for one in later.still_open.passed] == [("s2", "t_8")]
    binlogs, jobs = (some[before:] for some in logged(w))
    base = SchemaState().fold(logged(w)[1][:before])
    extras = extras_of_window(window_schemas(base, binlogs, jobs, lo), Naming(rules(**PESSIMISTIC)), later, lo)
    assert [(extra.table, extra.values) for extra in extras] == [("t_2", {"n": "5"}), ("t_8", {"n": "5"})]


def test_rows_of_a_table_passed_over_get_a_column_when_the_target_does() -> None:
    # Not from the start of the window: the target does not have it there.
    w = one_ahead()
    held, before, lo = planned(w)[1].still_open, len(logged(w)[0]), w.clock()
    w.add_column("s1", "t_1", integer("m", default="6"))
    found, later = follow(w, before, lo, held, Resolution(("all", "t"), ()))
    assert [ddl.decision for ddl in found] == ["apply", "apply"]
    binlogs, jobs = (some[before:] for some in logged(w))
    base = SchemaState().fold(logged(w)[1][:before])
    extras = extras_of_window(window_schemas(base, binlogs, jobs, lo), Naming(rules(**PESSIMISTIC)), later, lo)
    since = found[1].since
    assert [(extra.db, extra.since, extra.values) for extra in extras] == [
        ("s2", 0, {"n": "5"}), ("s2", since, {"n": "5", "m": "6"})
    ]  # fmt: skip


def test_rows_of_a_table_passed_over_lack_the_new_column_before_the_target_has_it() -> None:
    # The table has a column of its own, so its own definition does not say what the target has.
    w = two_shards()
    w.add_column("s1", "t_1", integer("a", default="1"))
    w.add_column("s2", "t_2", integer("b", default="2"))
    held, before, lo = planned(w)[1].still_open, len(logged(w)[0]), w.clock()
    w.add_column("s1", "t_1", integer("m", default="6"))
    found, locks = follow(w, before, lo, held, Resolution(("all", "t"), (("s2", "t_2"),)))
    assert [ddl.decision for ddl in found] == ["apply", "apply"]
    since = found[1].since
    shown = [
        [column.name for column in locks.definitions_at(ts)["s2", "t_2"].columns] for ts in (lo + 1, since - 1, since)
    ]
    assert shown == [["id", "name", "a"], ["id", "name", "a"], ["id", "name", "a", "m"]]


def test_a_held_row_gets_a_column_once() -> None:
    # Dropped and added again: the value is that of the column which it is released with.
    w = two_shards()
    w.create_table("s2", "t_3", PLAIN, ["id"])
    required = text("name", not_null=True)
    for db, table in (("s1", "t_1"), ("s2", "t_2"), ("s2", "t_3")):
        alter(w, db, table, f"ALTER TABLE {table} MODIFY COLUMN name x", integer("id"), required)
    for db, table in (("s1", "t_1"), ("s2", "t_2")):
        w.drop_column(db, table, "name")
        w.add_column(db, table, integer("name", default="7"))
    w.drop_table("s2", "t_3")
    _, locks = planned(w)
    schemas = window_schemas(SchemaState(), *logged(w))
    assert extras_of_window(schemas, Naming(rules(**PESSIMISTIC)), locks) == []
    assert [dict(hold.filled) for hold in locks.holds[-4:]] == [{"name": "7"}, {}, {"name": "7"}, {}]


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [
        ("name", "title", "label"),
        (Col("n", t.TIMESTAMP, 19), Col("n", t.DATETIME, 19), None),
        (Col("n", t.FLOAT, 12), Col("n", t.DOUBLE, 22), None),
        (text("n"), Col("n", t.BLOB, 65535), None),
    ],
)
def test_rows_wait_for_a_step_of_their_own_where_a_later_one_reads_them_otherwise(
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
    held, before, lo = planned(w)[1].still_open, len(logged(w)[0]), w.clock()
    w.drop_table("s2", "t_2")
    # The first step with the DROP, the second one in front of the next window.
    found, locks = follow(w, before, lo, held)
    assert (len(found), [hold.waits for hold in locks.holds]) == (1, [False, True])
    lo = w.clock()
    found, locks = follow(w, len(logged(w)[0]), lo, locks.still_open)
    assert [(ddl.commit_ts, ddl.segment, ddl.decision) for ddl in found] == [(lo + 1, 1, "apply")]
    assert [hold.released for hold in locks.holds] == [lo + 1]
    assert not locks.still_open


def test_steps_of_one_target_run_once_in_front_of_a_window() -> None:
    # An operator's command and what may run by itself have one place, and a mirror knows one DDL of a table there.
    w = two_shards()
    for kind, length in ((t.TIMESTAMP, 19), (t.DATETIME, 19)):
        alter(w, "s1", "t_1", "ALTER TABLE t_1 MODIFY COLUMN n x", *PLAIN, Col("n", kind, length))
    found, locks = resolved(w, planned(w)[1])
    assert (len(found), [hold.waits for hold in locks.holds]) == (1, [False, True])
    found, locks = follow(w, len(logged(w)[0]), w.clock(), locks.still_open)
    assert [ddl.decision for ddl in found] == ["apply"]
    assert not locks.still_open.holds


def test_steps_of_several_targets_run_with_one_ddl() -> None:
    w = one_ahead()
    for number in (1, 2):
        w.create_table(f"s{number}", f"u_{number}", PLAIN, ["id"])
    w.add_column("s1", "u_1", integer("n", default="5"))
    drop_database(w, "s2")
    others = {"schema-pattern": "s?", "table-pattern": "u_*", "target-schema": "all", "target-table": "u"}
    ran = run(w, routes=[*PESSIMISTIC["routes"], others])
    assert ran[-3:] == ["DROP DATABASE `s2`", ADD_N, ADD_N.replace("`t`", "`u`")]


def test_rows_of_a_table_that_is_gone_come_with_its_last_step() -> None:
    w = two_shards()
    w.create_table("s2", "t_3", PLAIN, ["id"])
    for db, table in (("s1", "t_1"), ("s2", "t_3")):
        w.add_column(db, table, integer("n", default="5"))
    w.drop_table("s2", "t_3")
    w.add_column("s1", "t_1", integer("m", default="6"))
    w.drop_table("s2", "t_2")
    # The other table goes on: both of its steps run at once.
    assert run(w) == [f"{ADD_N}; ALTER TABLE `all`.`t` ADD COLUMN `m` INT(11) DEFAULT '6'"]
    filled = [(hold.source[1], hold.waits, dict(hold.filled)) for hold in planned(w)[1].holds]
    assert filled == [("t_1", False, {"m": "6"}), ("t_3", False, {"m": "6"}), ("t_1", False, {})]


def test_one_column_is_filled_with_one_value() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="1"))
    w.add_column("s2", "t_2", integer("n", default="9"))
    with pytest.raises(SchemaError, match=r"rows of s1.t_1 were filled with '1', rows of s2.t_2 with '9'"):
        planned(w)


def test_the_way_on_where_tables_filled_a_column_differently() -> None:
    # The one DDL is done by hand, and its table passed over: its rows have what was added, and it is no table apart.
    w = two_shards()
    w.add_column("s1", "t_1", integer("n", default="1"))
    by_hand = w.add_column("s2", "t_2", integer("n", default="9"))
    _, locks = plan_locked_ddls(SchemaState(), *logged(w), rules(**PESSIMISTIC), [by_hand])
    (row,), locks = resolved(w, locks, ("s2", "t_2"))
    assert row.sql == "ALTER TABLE `all`.`t` ADD COLUMN `n` INT(11) DEFAULT '1'"
    before, lo = len(logged(w)[0]), w.clock()
    w.add_column("s1", "t_1", integer("m"))
    w.add_column("s2", "t_2", integer("m"))
    found, later = follow(w, before, lo, locks.still_open)
    assert [ddl.decision for ddl in found] == ["apply", "skip"]
    assert not later.still_open


def test_the_time_of_a_ddl_as_value_of_a_column_is_said() -> None:
    w = two_shards()
    for number, (db, table) in enumerate((("s1", "t_1"), ("s2", "t_2"))):
        w.add_column(db, table, Col("at", t.DATETIME, 19, default="CURRENT_TIMESTAMP"))
        for info in (w.table(db, table).raw, w.jobs[-1]["binlog"]["TableInfo"]):
            info["cols"][-1]["origin_default"] = f"2026-11-23 10:00:0{number}"
    found, _ = planned(w)
    assert found[-1].decision == "apply"
    assert "have the time of their own DDL" in found[-1].alert


def test_no_table_is_passed_over_whose_rows_would_be_others() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    alter(w, "s2", "t_2", "ALTER TABLE t_2 MODIFY COLUMN name BLOB", integer("id"), Col("name", t.BLOB, 65535))
    with pytest.raises(ConfigError, match=r"column name: rows of s2\.t_2"):
        resolved(w, planned(w)[1], ("s2", "t_2"))
    # Nor may one that was passed over, or the others, become such.
    for table in ("t_1", "t_2"):
        w = one_ahead()
        _, locks = resolved(w, planned(w)[1])
        before, lo = len(logged(w)[0]), w.clock()
        own = [integer("n", default="5")] * (table == "t_1")
        alter(w, f"s{table[-1]}", table, "ALTER TABLE t MODIFY COLUMN name BLOB", integer("id"),
              Col("name", t.BLOB, 65535), *own)  # fmt: skip
        with pytest.raises(SchemaError, match=r"column name: rows of s2\.t_2"):
            follow(w, before, lo, locks.still_open)


def test_no_table_is_passed_over_of_which_rows_that_wait_would_be_others() -> None:
    # It has the target's column again, but rows were written while it had another.
    w = two_shards()
    w.add_column("s1", "t_1", integer("n"))
    for column in (Col("name", t.BLOB, 65535), text("name")):
        alter(w, "s2", "t_2", "ALTER TABLE t_2 MODIFY COLUMN name x", integer("id"), column)
    with pytest.raises(ConfigError, match=r"column name: rows of s2\.t_2"):
        resolved(w, planned(w)[1], ("s2", "t_2"))


def test_a_table_that_is_emptied_while_its_rows_wait_keeps_its_steps() -> None:
    w = one_ahead()
    w.add_column("s1", "t_1", integer("m"))
    w.truncate("s1", "t_1")
    w.add_column("s2", "t_2", integer("n", default="5"))
    assert run(w) == [ADD_N]
    assert [column.name for column in planned(w)[1].definitions_at(w.clock())["s1", "t_1"].columns] == [
        "id",
        "name",
        "n",
    ]
    w.add_column("s2", "t_2", integer("m"))
    assert not planned(w)[1].still_open
